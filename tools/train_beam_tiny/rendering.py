"""Renders dialogues with the shipped chat template, without transformers (many per second on every
core), and marks which tokens the model itself writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .dialogues.exchange import Dialogue

ASSETS = Path(__file__).resolve().parents[2] / "beam_trt" / "assets"
CHECKPOINT = ASSETS / "beam_tiny"
START, RETURN, CALL = 1, 3, 4


class Renderer:
    """The chat template, compiled once; environment settings are those of transformers."""

    def __init__(self, template: Path = CHECKPOINT / "chat_template.jinja") -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = _raise
        self._template = environment.from_string(template.read_text(encoding="utf-8"))

    def prompt(self, dialogue: Dialogue) -> str:
        """The text up to and including the last "<|start|>assistant"."""
        return self._render(dialogue, dialogue.messages, generate=True)

    def text(self, dialogue: Dialogue) -> str:
        """The prompt and the right reply, up to its stop token."""
        return self._render(dialogue, [*dialogue.messages, dialogue.reply], generate=False)

    def _render(self, dialogue: Dialogue, messages: list[dict[str, Any]], generate: bool) -> str:
        return self._template.render(
            messages=messages,
            tools=dialogue.tools or None,
            reasoning_effort=dialogue.effort,
            preserve_thinking=dialogue.preserve_thinking,
            add_generation_prompt=generate,
        )


def _raise(message: str) -> None:
    raise TemplateError(message)


def written_by_model(ids: npt.NDArray[Any], user_id: int, assistant_id: int) -> npt.NDArray[Any]:
    """True for the tokens the assistant writes in the last turn: after "<|start|>assistant" up to
    and including <|return|> or <|call|>. Earlier turns do not count: their reasoning may have been
    dropped, and learning from them would teach answers without reasoning.

    ids: [num_tokens] int. Returns [num_tokens] bool.
    """
    written = np.zeros(len(ids), dtype=bool)
    starts = np.flatnonzero(ids[:-1] == START)
    turns = starts[ids[starts + 1] == user_id]
    begin = int(turns[-1]) if len(turns) else 0
    writing = False
    for i in range(begin, len(ids)):
        if writing:
            written[i] = True
            writing = ids[i] not in (RETURN, CALL)
        elif i and ids[i] == assistant_id and ids[i - 1] == START:
            writing = True
    return written
