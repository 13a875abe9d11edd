"""`beam-trt generate`: one request, through a server or in process."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from beam_trt.cli.output import console, json_option, print_json
from beam_trt.errors import RequestError

if TYPE_CHECKING:
    from beam_trt.serving.answer import Answer, GenerateRequest, Piece

DEFAULT_URL = "grpc://127.0.0.1:8001"


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--url", help=f"Server: grpc://HOST:PORT or http://HOST:PORT.  [default: {DEFAULT_URL}]"
)
@click.option(
    "--engine", type=click.Path(path_type=Path), help="Run this engine or build, no server."
)
@click.option("--stream/--no-stream", default=True, help="Print the answer while it is generated.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the chat template.")
@click.option("--prompt-ids", metavar="1,2,3", help="Token ids instead of PROMPT; implies --raw.")
@click.option("--max-tokens", type=int, help="At most this many new tokens.  [default: 256]")
@click.option("--temperature", type=float, help="0 is greedy.  [default: 0]")
@click.option("--top-k", type=int, help="Sample among the K most likely tokens.")
@click.option(
    "--top-p", type=float, help="Sample among the most likely tokens of this probability."
)
@click.option("--seed", type=int, help="The same seed gives the same answer.")
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."
)
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--tools", type=click.Path(path_type=Path), help="JSON file with a list of tools.")
@click.option("--effort", help="Reasoning effort: low, medium, high, xhigh or max.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds of silence to accept.")
@json_option
def generate(
    prompt: str | None,
    url: str | None,
    engine: Path | None,
    stream: bool,
    timeout: float,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Answer PROMPT as a chat, or continue it with --raw.

    Shows reasoning dimmed on stderr; the answer and tool calls go to stdout.
    """
    if url and engine:
        raise click.UsageError("give --url or --engine, not both.")
    request = _request(prompt, **wishes)
    is_chat = request.chat is not None
    with _open(url or DEFAULT_URL, engine, timeout) as source:
        if as_json:
            answer = _collect(source.stream(request)) if stream else source.generate(request)
            print_json(answer.to_dict())
        elif stream:
            _show(source.stream(request), is_chat)
        else:
            _show([_as_piece(source.generate(request))], is_chat)


def _open(url: str, engine: Path | None, timeout_s: float) -> Any:
    if engine is None:
        from beam_trt.client.connect import connect

        return connect(url, timeout_s)
    from beam_trt.serving.local import LocalEngine

    return LocalEngine(engine / "engine" if (engine / "engine").is_dir() else engine)


def _request(
    prompt: str | None,
    raw: bool,
    prompt_ids: str | None,
    system: str | None,
    tools: Path | None,
    effort: str | None,
    stop: tuple[str, ...],
    **sampling: Any,
) -> "GenerateRequest":
    from beam_trt.runtime.request import SamplingParams
    from beam_trt.serving.answer import GenerateRequest
    from beam_trt.serving.chat import ChatRequest

    if (prompt is None) == (prompt_ids is None):
        raise click.UsageError("give either PROMPT or --prompt-ids.")
    is_raw = raw or prompt_ids is not None
    if is_raw and (system or tools or effort):
        raise click.UsageError("--system, --tools and --effort belong to a chat, not to --raw.")
    given = {name: value for name, value in sampling.items() if value is not None}
    common: dict[str, Any] = {
        "sampling": SamplingParams(**given),
        "stop_strings": stop,
        "fit_max_tokens": "max_tokens" not in given,
    }
    if prompt_ids is not None:
        return GenerateRequest(input_ids=_parse_ids(prompt_ids), **common)
    if is_raw:
        return GenerateRequest(text=prompt, **common)
    messages = [{"role": "system", "content": system}] if system else []
    chat = ChatRequest(
        messages=(*messages, {"role": "user", "content": prompt}),
        tools=_read_tools(tools),
        reasoning_effort=effort,
    )
    return GenerateRequest(chat=chat, **common)


def _parse_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"expected integers with commas between them, got {text!r}.", param_hint="--prompt-ids"
        ) from None


def _read_tools(path: Path | None) -> tuple[dict[str, Any], ...]:
    if path is None:
        return ()
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(
            f"{path}: expected a JSON file with a list of tools: {error}."
        ) from error
    if not isinstance(tools, list):
        raise RequestError(f"{path}: expected a list of tools, got {type(tools).__name__}.")
    return tuple(tools)


def _collect(pieces: "Iterable[Piece]") -> "Answer":
    from beam_trt.serving.answer import Answer

    return Answer.join(pieces)


def _as_piece(answer: "Answer") -> "Piece":
    from beam_trt.serving.answer import Piece

    return Piece(
        answer.text,
        answer.reasoning,
        answer.content,
        answer.token_ids,
        answer.logprobs,
        answer.ending,
    )


def _show(pieces: "Iterable[Piece]", is_chat: bool) -> None:
    """Print pieces as they come: reasoning dimmed on stderr, the answer and tool calls on stdout.
    Of a chat whose answer does not follow the format, nothing is lost: all of it comes at last."""
    seen: list[Piece] = []
    in_reasoning = False
    for piece in pieces:
        seen.append(piece)
        if piece.reasoning:
            console.print(piece.reasoning, style="dim", end="", markup=False, soft_wrap=True)
            in_reasoning = True
        new = piece.content if is_chat else piece.text
        if new and in_reasoning:
            console.print("\n")
            in_reasoning = False
        click.echo(new, nl=False)
    if in_reasoning:
        console.print()
    answer = _collect(seen)
    _show_end(answer, is_chat)


def _show_end(answer: "Answer", is_chat: bool) -> None:
    ending = answer.ending
    assert ending is not None
    if is_chat and not (answer.content or answer.reasoning or ending.tool_calls):
        console.print("the answer does not follow the chat format; all of it:", style="yellow")
        click.echo(answer.text, nl=False)
    click.echo()
    for call in ending.tool_calls:
        function = call["function"]
        arguments = ", ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in function["arguments"].items()
        )
        click.echo(f"{function['name']}({arguments})")
    if ending.usage is not None:
        counts = f"{ending.usage.prompt_tokens} + {ending.usage.generated_tokens} tokens"
        console.print(f"{counts}, {ending.finish_reason}{_speed(answer)}", style="dim")


def _speed(answer: "Answer") -> str:
    """Time to the first token and tokens per second after it, where the server told its times."""
    ending = answer.ending
    times = ending.timings if ending else None
    if times is None or times.first_token is None or times.last_token is None:
        return ""
    first_ms = (times.first_token - times.arrival) / 1e6
    text = f", first token {first_ms:.0f} ms"
    num_more, took_ns = len(answer.token_ids) - 1, times.last_token - times.first_token
    return f"{text}, {num_more / (took_ns / 1e9):.1f} tokens/s" if num_more and took_ns else text
