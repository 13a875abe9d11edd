"""An engine directory as its reader sees it: config.json, and the manifest of its files.

Reads and checks; writes only manifest.json. Knows nothing about what is in a tensor and needs no
torch.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from beam_trt import __version__
from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import BeamTrtError, EngineError

ENGINE_FORMAT = 1
"""Raised by one whenever an older reader could misread a newer engine."""

CONFIG_FILE = "config.json"
MANIFEST_FILE = "manifest.json"
LAUNCH_TABLE_FILE = "plugins/launch_table.json"
TOKENIZER_DIR = "tokenizer"
_HASH_BYTES = 8 * 2**20
_REBUILD = "Build the engine again, or copy it again from where it was built."


def rank_file(rank: int) -> str:
    """Name of one rank's weights inside an engine directory."""
    return f"rank{rank}.safetensors"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an engine: its path inside the directory with `/`, bytes, and sha256 in hex."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every file of an engine but the manifest itself, and where the engine came from.

    source: {identity, precision, num_tensors} of the checkpoint it was built from.
    target: {gpu, sm} it was built for; both null on CPU.
    """

    files: tuple[FileEntry, ...]
    source: dict[str, Any]
    target: dict[str, Any]
    tool_version: str = __version__
    engine_format: int = ENGINE_FORMAT

    @classmethod
    def of_files(
        cls,
        engine_dir: Path,
        source: dict[str, Any],
        target: dict[str, Any],
        hashed: dict[str, str] | None = None,
    ) -> "Manifest":
        """Hash every file below `engine_dir`, in name order; `hashed` gives the sha256 of files
        whose writer already knows it."""
        entries = []
        for path in sorted(p for p in engine_dir.rglob("*") if p.is_file()):
            name = path.relative_to(engine_dir).as_posix()
            if name != MANIFEST_FILE:
                digest = (hashed or {}).get(name) or sha256_of(path)
                entries.append(FileEntry(name, path.stat().st_size, digest))
        return cls(tuple(entries), source, target)

    def write(self, engine_dir: Path) -> None:
        text = json.dumps(asdict(self), indent=2) + "\n"
        (engine_dir / MANIFEST_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, engine_dir: Path) -> "Manifest":
        """Read `engine_dir/manifest.json`; EngineError where it is missing, damaged or newer."""
        raw = _read_json(engine_dir, MANIFEST_FILE)
        _check_format(engine_dir / MANIFEST_FILE, raw, raw.get("tool_version"))
        try:
            files = tuple(FileEntry(**entry) for entry in raw["files"])
            return cls(**{**raw, "files": files})
        except (KeyError, TypeError) as error:
            raise EngineError(
                f"{engine_dir / MANIFEST_FILE}: not a manifest of this version: {error}. {_REBUILD}"
            ) from error

    def check_sizes(self, engine_dir: Path) -> None:
        """EngineError for a file that is missing or has another size. Reads no file."""
        for entry in self.files:
            self.check_size(engine_dir, entry)

    def check_size(self, engine_dir: Path, entry: FileEntry) -> None:
        """`check_sizes` for one listed file."""
        path = engine_dir / entry.name
        if not path.is_file():
            raise EngineError(
                f"{path}: missing; manifest.json lists it with {entry.num_bytes} bytes. {_REBUILD}"
            )
        if path.stat().st_size != entry.num_bytes:
            raise EngineError(
                f"{path}: expected {entry.num_bytes} bytes, found {path.stat().st_size}: the file "
                f"was cut or replaced. {_REBUILD}"
            )

    def check_hash(self, engine_dir: Path, name: str) -> None:
        """EngineError where the content of one listed file is not what the build wrote."""
        entry = next(entry for entry in self.files if entry.name == name)
        found = sha256_of(engine_dir / name)
        if found != entry.sha256:
            raise EngineError(
                f"{engine_dir / name}: expected sha256 {entry.sha256}, found {found}: the file "
                f"changed after the build. {_REBUILD}"
            )

    def check_no_stray(self, engine_dir: Path) -> None:
        """EngineError for a file in the folder that the build did not write."""
        listed = {entry.name for entry in self.files} | {MANIFEST_FILE}
        for path in sorted(p for p in engine_dir.rglob("*") if p.is_file()):
            if path.relative_to(engine_dir).as_posix() not in listed:
                raise EngineError(
                    f"{path}: not listed in manifest.json, so not part of this engine. Remove it."
                )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine directory says about itself in config.json. `mapping` is rank 0's."""

    engine_dir: Path
    model: ModelConfig
    quant: QuantConfig
    mapping: Mapping
    build: BuildConfig
    version: str = __version__
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def tokenizer_dir(self) -> Path:
        return self.engine_dir / TOKENIZER_DIR

    def rank_path(self, rank: int) -> Path:
        return self.engine_dir / rank_file(rank)

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json."""
        build = self.build.to_dict()
        kv_dtype = build.pop("kv_dtype")
        return {
            "version": self.version,
            "engine_format": ENGINE_FORMAT,
            "pretrained_config": self.model.to_dict(),
            "quantization": {
                "precision": str(self.quant.precision),
                "experts_only": self.quant.experts_only,
            },
            "mapping": {"tp_size": self.mapping.tp_size, "ep_size": self.mapping.ep_size},
            "build_config": build,
            "kv_cache": {"dtype": kv_dtype},
            "versions": dict(self.versions),
        }

    @classmethod
    def load(cls, engine_dir: Path) -> "EngineConfig":
        """Read `engine_dir/config.json`. EngineError where the folder is no engine, or one of a
        newer version; nothing else is opened."""
        raw = _read_json(engine_dir, CONFIG_FILE)
        where = engine_dir / CONFIG_FILE
        if "pretrained_config" not in raw:
            raise EngineError(
                f"{where}: not an engine's configuration: it has no pretrained_config. "
                "Give the `engine` folder that `beam-trt build` wrote."
            )
        _check_format(where, raw, raw.get("version"))
        try:
            quant, build = raw["quantization"], raw["build_config"]
            return cls(
                engine_dir=engine_dir,
                model=ModelConfig.from_dict(raw["pretrained_config"]),
                quant=QuantConfig(Precision.parse(quant["precision"]), quant["experts_only"]),
                mapping=Mapping(**raw["mapping"]),
                build=BuildConfig.from_dict({**build, "kv_dtype": raw["kv_cache"]["dtype"]}),
                version=raw["version"],
                versions=raw.get("versions", {}),
            )
        except (KeyError, TypeError) as error:
            raise EngineError(f"{where}: not complete: {error}. {_REBUILD}") from error
        except BeamTrtError as error:
            raise EngineError(f"{where}: {error}") from error

    def check_start(self, num_ranks: int | None = None, sm: int | None = None) -> Manifest:
        """Refuse, before any weight is read, to start what cannot run here: another rank count,
        another GPU, a file missing or cut, a small file changed. Weights are not hashed: that is
        `beam-trt verify`. None for num_ranks takes the engine's; sm None is the CPU."""
        where = self.engine_dir / CONFIG_FILE
        built = self.mapping.tp_size
        if num_ranks is not None and num_ranks != built:
            raise EngineError(
                f"{where}: built for tp_size {built}, started with {num_ranks} ranks. "
                f"Start {built} ranks or rebuild with tp_size {num_ranks}."
            )
        manifest = Manifest.load(self.engine_dir)
        listed = {entry.name for entry in manifest.files}
        for name in (CONFIG_FILE, *(rank_file(rank) for rank in range(built))):
            if name not in listed:
                raise EngineError(
                    f"{self.engine_dir / MANIFEST_FILE}: does not list {name}, which an engine "
                    f"with tp_size {built} needs. {_REBUILD}"
                )
        manifest.check_sizes(self.engine_dir)
        for name in sorted(listed):
            if not name.endswith(".safetensors"):
                manifest.check_hash(self.engine_dir, name)
        self._check_target(manifest, sm)
        return manifest

    def _check_target(self, manifest: Manifest, sm: int | None) -> None:
        wanted = manifest.target.get("sm")
        if wanted == sm:
            return
        built = f"{self.build.target} (sm_{wanted})" if wanted else "cpu"
        here = f"a GPU with sm_{sm}" if sm else "the CPU"
        raise EngineError(
            f"{self.engine_dir / MANIFEST_FILE}: built for {built}, started on {here}. "
            "Start it on what it was built for, or rebuild it with another --gpu "
            "(none at all for the CPU)."
        )


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file, read in pieces of 8 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASH_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _read_json(engine_dir: Path, name: str) -> dict[str, Any]:
    path = engine_dir / name
    if not engine_dir.is_dir():
        raise EngineError(f"{engine_dir}: no such folder. Give the folder of a built engine.")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(
            f"{engine_dir}: not an engine: it has no {name}. "
            "Give the `engine` folder that `beam-trt build` wrote."
        ) from None
    except (ValueError, OSError) as error:
        raise EngineError(f"{path}: cannot be read as JSON: {error}. {_REBUILD}") from error
    if not isinstance(raw, dict):
        raise EngineError(f"{path}: expected a JSON object. {_REBUILD}")
    return raw


def _check_format(path: Path, raw: dict[str, Any], version: Any) -> None:
    found = raw.get("engine_format")
    if not isinstance(found, int) or found < 1:
        raise EngineError(f"{path}: has no engine_format. {_REBUILD}")
    if found > ENGINE_FORMAT:
        raise EngineError(
            f"{path}: written by beam-trt {version} in engine format {found}; this is beam-trt "
            f"{__version__}, which reads up to format {ENGINE_FORMAT}. Install beam-trt {version} "
            "or newer, or rebuild the engine with this one."
        )
    if found < ENGINE_FORMAT:
        raise EngineError(
            f"{path}: written by beam-trt {version} in engine format {found}; this version reads "
            f"format {ENGINE_FORMAT} only. Rebuild the engine."
        )
