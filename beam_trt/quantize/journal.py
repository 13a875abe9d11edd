"""The journal of a run that may be stopped at any moment: what was asked for, what is finished.

One JSON object a line, each flushed to disk before the next step, so that a kill costs at most the
line being written. Knows nothing about tensors; needs no torch.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beam_trt.errors import CheckpointError, ConfigError, OutputError

JOURNAL_FILE = "journal.jsonl"

SOURCE = "source"
"""Settings under this key describe the source checkpoint rather than a choice of the user."""

_CHUNK = 1 << 22


class Journal:
    """Finished work of one run in its hidden folder. Close it, or use `with`.

    `shards` maps a finished shard's file name to its line {file, num_bytes, sha256, errors};
    `layers` holds the lines of calibrated layers in order; `errors` are the sums of all linears
    quantized up to the last finished shard.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Continue the journal in `folder`, or begin one with `settings` (JSON values).

        Raises ConfigError or CheckpointError when it was begun with other settings or from another
        source, OutputError when it cannot be read. OSError of writing passes through.
        """
        self.path = folder / JOURNAL_FILE
        self.shards: dict[str, dict[str, Any]] = {}
        self.layers: list[dict[str, Any]] = []
        self.errors: dict[str, tuple[float, float]] = {}
        lines, whole_bytes = _read(self.path)
        if lines:
            _check_same(folder, lines[0]["settings"], json.loads(json.dumps(settings)))
        for line in lines[1:]:
            self._take(line)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        os.ftruncate(self._descriptor, whole_bytes)
        os.lseek(self._descriptor, 0, os.SEEK_END)
        if not lines:
            try:
                self._append({"kind": "begun", "settings": dict(settings)})
            except OSError:
                self.close()
                self.path.unlink()
                raise

    @property
    def is_empty(self) -> bool:
        """Whether a rerun would find nothing to reuse."""
        return not self.shards and not self.layers

    def add_shard(self, path: Path, errors: Mapping[str, tuple[float, float]]) -> None:
        """Record that the shard at `path` is complete and on disk; `errors` are sums of the linears
        quantized since the last one."""
        line = {
            "kind": "shard",
            "file": path.name,
            "num_bytes": path.stat().st_size,
            "sha256": file_sha256(path),
            "errors": dict(errors),
        }
        self._append(line)
        self._take(line)

    def add_layer(self, values: Mapping[str, Any]) -> None:
        """Record one layer's calibration."""
        line = {"kind": "calibrated", **values}
        self._append(line)
        self._take(line)

    def forget_layers(self) -> None:
        """Calibrate anew from the first layer."""
        self.layers.clear()

    def drop_damaged(self, folder: Path) -> list[str]:
        """Forget shards that are not in `folder` as they were recorded; their names."""
        damaged = [
            file
            for file, line in self.shards.items()
            if not (folder / file).is_file()
            or (folder / file).stat().st_size != line["num_bytes"]
            or file_sha256(folder / file) != line["sha256"]
        ]
        for file in damaged:
            del self.shards[file]
        return damaged

    def close(self) -> None:
        os.close(self._descriptor)

    def _take(self, line: dict[str, Any]) -> None:
        if line["kind"] == "shard":
            self.shards[line["file"]] = line
            self.errors |= {name: (sums[0], sums[1]) for name, sums in line["errors"].items()}
        else:
            # A calibration that had to start over writes its layers again.
            del self.layers[line["layer_idx"] :]
            self.layers.append(line)

    def _append(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def kept_sentence(folder: Path) -> str:
    """What the journal in the hidden `folder` says is finished and how to go on; empty when nothing
    is."""
    try:
        lines, _ = _read(folder / JOURNAL_FILE)
    except OutputError:
        return ""
    shards = {line["file"] for line in lines if line["kind"] == "shard"}
    layers = {line["layer_idx"] for line in lines if line["kind"] == "calibrated"}
    parts = []
    if shards:
        parts.append(f"{len(shards)} of {lines[0]['settings']['num_shards']} shards")
    if layers:
        parts.append(f"the calibration of {len(layers)} layer{'s' if len(layers) > 1 else ''}")
    if not parts:
        return ""
    return (
        f"{' and '.join(parts)} are finished and kept in {folder}: run the same command again to "
        "continue from there."
    )


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines, and how many bytes they take; what follows was cut by a kill."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise OutputError(_unreadable(path, error.strerror or str(error))) from error
    whole = data[: data.rfind(b"\n") + 1]
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        kinds = [line["kind"] for line in lines]
        if lines and (kinds[0] != "begun" or not set(kinds[1:]) <= {"shard", "calibrated"}):
            raise ValueError(f"lines of kind {', '.join(sorted(set(kinds)))}")
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(_unreadable(path, repr(error))) from error
    return lines, len(whole)


def _unreadable(path: Path, why: str) -> str:
    return (
        f"{path}: expected the journal of an interrupted run, found {why}. Delete {path.parent} to "
        "start over, or give another output folder."
    )


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = _flat(before), _flat(now)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if not changed:
        return
    of_source = [key for key in changed if key.startswith(f"{SOURCE} ")]
    if of_source:
        names = ", ".join(key.removeprefix(f"{SOURCE} ") for key in of_source[:3])
        more = f" and {len(of_source) - 3} more" if len(of_source) > 3 else ""
        raise CheckpointError(
            f"{folder}: an interrupted run is kept here that read another source: {names}{more} "
            f"changed since. Give the same checkpoint to continue it, or delete {folder} to start "
            "over."
        )
    listed = "; ".join(f"{key}: {old.get(key)} there, {new.get(key)} now" for key in changed)
    raise ConfigError(
        f"{folder}: an interrupted run with other settings is kept here ({listed}). Use the same "
        f"settings to continue it, or delete {folder} to start over."
    )


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            flat |= _flat(entry, f"{prefix}{key} ")
        else:
            flat[f"{prefix}{key}"] = entry
    return flat
