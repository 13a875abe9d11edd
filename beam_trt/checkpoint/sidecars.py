"""The files of a checkpoint that are neither weights nor config.json: tokenizer, template, ..."""

from pathlib import Path

from beam_trt.errors import CheckpointError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"

SIDECARS = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "response_template.json",
    "response_schema.json",
)
"""Files that travel with the weights through every stage, where they exist."""

SIDECAR_FOLDERS = ("additional_chat_templates",)


def copy_sidecars(source: Path, target: Path) -> list[str]:
    """Copy what exists of SIDECARS into the existing folder `target`; the names copied."""
    copied = []
    for name in SIDECARS:
        if (source / name).is_file():
            _copy(source / name, target / name)
            copied.append(name)
    for name in SIDECAR_FOLDERS:
        for file in sorted((source / name).glob("*")):
            (target / name).mkdir(exist_ok=True)
            _copy(file, target / name / file.name)
            copied.append(f"{name}/{file.name}")
    return copied


def _copy(source: Path, target: Path) -> None:
    try:
        data = source.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{source}: cannot be read: {error.strerror}. Check its permissions."
        ) from error
    target.write_bytes(data)
