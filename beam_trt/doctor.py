"""What this machine has and what that allows. Imports nothing heavy itself: a package that is
missing, broken or crashes on import is a finding, asked for in a process of its own."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path
from typing import Any

from beam_trt.config.hardware import gpus
from beam_trt.errors import ServerError
from beam_trt.triton.installation import Installation

PROBE_TIMEOUT_S = 120
_MIN_SHM_BYTES = 64 * 2**20
_MIN_DISK_BYTES = 10**9
_NVIDIA_INDEX = (
    "It comes from NVIDIA's own package index; the package of this name elsewhere is a stub that "
    "refuses to install."
)


class Status(StrEnum):
    """How one finding is to be read. ABSENT is fine unless the user wants what it would allow."""

    OK = "ok"
    WARN = "warn"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked for, what was found, and what follows from it."""

    name: str
    status: Status
    found: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing beam-trt can or cannot do here, with the reason when it cannot."""

    name: str
    possible: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings and what they allow."""

    checks: tuple[Check, ...]
    abilities: tuple[Ability, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(folder: Path) -> Diagnosis:
    """Look at this machine; `folder` is where outputs would go. Takes a few seconds, raises nothing
    for what it finds."""
    with ThreadPoolExecutor() as pool:  # the two slow ones at once
        torch, transformers = pool.submit(_torch), pool.submit(_transformers)
    checks = (
        _machine(),
        _memory(),
        _disk(folder),
        _shm(),
        *find_gpus(),
        torch.result(),
        transformers.result(),
        _package("nvidia-modelopt", "modelopt", "quantizing to NVFP4 and FP8 needs it"),
        _package("compressed-tensors", "compressed_tensors", "transformers reads FP8 with it"),
        _tritonserver(),
        _package("tritonclient", "tritonclient", "`beam-trt generate --url` needs it"),
        _package("triton", "triton", "GPU kernels written in Triton need it", Status.ABSENT),
        _package(
            "tensorrt",
            "tensorrt",
            f"without it no engines for --runtime tensorrt. {_NVIDIA_INDEX}",
            Status.ABSENT,
        ),
        _package(
            "tensorrt-llm",
            "tensorrt_llm",
            f"without it no engines for --runtime tensorrt-llm. {_NVIDIA_INDEX}",
            Status.ABSENT,
        ),
    )
    return Diagnosis(checks, tuple(_abilities({check.name: check for check in checks})))


def _abilities(checks: dict[str, Check]) -> Iterable[Ability]:
    def needs(name: str, *wanted: str) -> Ability:
        lacking = [wish for wish in wanted if checks[wish].status is not Status.OK]
        reason = f"{', '.join(lacking)}: see above" if lacking else ""
        return Ability(name, not lacking, reason)

    yield needs("native engines on the CPU: build, verify, generate", "torch")
    yield needs("quantize to nvfp4 and fp8", "torch", "transformers", "nvidia-modelopt")
    yield needs("verify --reference (logits against transformers)", "torch", "transformers")
    yield needs("serve through Triton Inference Server", "torch", "transformers", "tritonserver")
    yield needs("build engines for GPUs (weights and limits of --gpu)", "torch")
    not_yet = "this version's native runtime has CPU implementations only"
    yield Ability("run native engines on GPUs", False, not_yet)
    for runtime in ("tensorrt", "tensorrt-llm"):
        yield Ability(f"--runtime {runtime}", False, "this version builds the native runtime only")


def _machine() -> Check:
    cores = len(os.sched_getaffinity(0))
    found = f"{platform.system()} {platform.machine()}, {cores} cores, Python "
    return Check("machine", Status.OK, found + platform.python_version(), "")


def _memory() -> Check:
    values = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        values[key] = int(rest.split()[0]) * 1024
    total, free = values["MemTotal"], values["MemAvailable"]
    return Check(
        "memory",
        Status.OK,
        f"{free / 1e9:.1f} GB of {total / 1e9:.1f} GB available",
        "an engine on the CPU maps its weights and takes 256 MiB of KV cache a rank",
    )


def _disk(folder: Path) -> Check:
    place = next(p for p in (folder.resolve(), *folder.resolve().parents) if p.exists())
    usage = shutil.disk_usage(place)
    status = Status.OK if usage.free >= _MIN_DISK_BYTES else Status.WARN
    return Check(
        "disk",
        status,
        f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB free here",
        "Beam-1.0-501B takes 1003 GB in bf16, 504 GB in fp8, 284 GB in nvfp4, once for the "
        "checkpoint and once for the engine",
    )


def _shm() -> Check:
    path = Path("/dev/shm")
    if not path.is_dir():
        return Check("/dev/shm", Status.WARN, "not there", "Triton's Python backend needs it")
    free = shutil.disk_usage(path).free
    enough = free >= _MIN_SHM_BYTES
    meaning = "Triton's Python backend exchanges tensors through it"
    if not enough:
        meaning += ": give the container more, e.g. docker run --shm-size=1g"
    status = Status.OK if enough else Status.WARN
    return Check("/dev/shm", status, f"{free / 2**20:.0f} MiB free", meaning)


def find_gpus() -> Iterable[Check]:
    """One Check for each GPU that nvidia-smi names, or one that says why there is none."""
    tool = shutil.which("nvidia-smi")
    cpu_only = "engines run on the CPU here; --gpu still builds for the GPUs of another machine"
    if tool is None:
        yield Check("GPUs", Status.ABSENT, "no nvidia-smi, so no NVIDIA driver", cpu_only)
        return
    query = "--query-gpu=name,memory.total,compute_cap,driver_version"
    try:
        done = subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("GPUs", Status.WARN, f"nvidia-smi does not answer: {error}", cpu_only)
        return
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 3]
    if done.returncode or not rows:
        said = (done.stderr or done.stdout).strip().splitlines()
        found = f"nvidia-smi found none: {said[0] if said else 'no output'}"
        yield Check("GPUs", Status.WARN, found, cpu_only)
        return
    for number, (name, memory_mib, capability, driver) in enumerate(rows):
        sm = int(capability.replace(".", ""))
        known = [gpu.name for gpu in gpus().values() if gpu.sm == sm]
        yield Check(
            f"GPU {number}",
            Status.OK,
            f"{name}, {int(memory_mib) * 2**20 / 1e9:.0f} GB, sm_{sm}, driver {driver}",
            f"--gpu {' or '.join(known)}" if known else "not in the GPU table",
        )


def _torch() -> Check:
    code = (
        "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, "
        "torch.cuda.is_available(), torch.cuda.device_count()]))"
    )

    def read(answer: list[Any]) -> tuple[Status, str, str]:
        version, cuda, available, count = answer
        built = f"built for CUDA {cuda}" if cuda else "CPU build"
        if available:
            return Status.OK, f"{version}, {built}, sees {count} GPUs", ""
        meaning = "GPUs stay unused" if cuda is None else "CUDA build, but no usable GPU"
        return Status.OK, f"{version}, {built}", meaning

    return _probe("torch", code, read, "nothing but checks of files works without torch")


def _transformers() -> Check:
    code = (
        "import json, transformers; from transformers import BeamConfig, BeamForCausalLM; "
        "print(json.dumps(transformers.__version__))"
    )
    return _probe(
        "transformers",
        code,
        lambda version: (Status.OK, f"{version}, has Beam", ""),
        "tokenizers, templates and references need transformers >= 5.20.1, the first with Beam",
    )


def _probe(
    name: str, code: str, read: Callable[[Any], tuple[Status, str, str]], without: str
) -> Check:
    """Import a package in another process and read the JSON it prints last."""
    if util.find_spec(name) is None:
        return Check(name, Status.WARN, "not installed", without)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            return Check(name, *read(json.loads(lines[-1])))
        said = done.stderr.strip().splitlines()
        reason = said[-1] if said else f"exit code {done.returncode}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    return Check(name, Status.WARN, f"{_version(name) or '?'}, import fails: {reason}", without)


def _package(name: str, module: str, meaning: str, missing: Status = Status.WARN) -> Check:
    version = _version(name)
    if version is None or util.find_spec(module) is None:
        return Check(name, missing, "not installed", meaning)
    return Check(name, Status.OK, version, "")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tritonserver() -> Check:
    try:
        found = Installation.find()
    except ServerError as error:
        return Check("tritonserver", Status.WARN, "not usable", str(error))
    version = f"in nvidia-pytriton {_version('nvidia-pytriton')}"
    return Check("tritonserver", Status.OK, f"{version}, libpython in {found.library_dir}", "")
