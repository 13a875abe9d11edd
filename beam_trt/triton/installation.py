"""Where the embedded tritonserver and the shared Python library it needs are on this machine.

The server binary, its Python backend and a stub for every Python version come in the
nvidia-pytriton wheel; only files are used, never its API.
"""

import importlib.util
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from beam_trt.errors import ServerError

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_LIBRARY = f"libpython{PYTHON_VERSION}.so.1.0"


@dataclass(frozen=True, slots=True)
class Installation:
    """A tritonserver that can run Python models with this interpreter's packages. `library_dir`
    holds libpython; `root` is pytriton's tritonserver folder."""

    root: Path
    library_dir: Path

    @property
    def server(self) -> Path:
        return self.root / "bin" / "tritonserver"

    @classmethod
    def find(cls) -> "Installation":
        """Raises ServerError naming the package to install."""
        spec = importlib.util.find_spec("pytriton")
        origin = spec.origin if spec else None
        if origin is None:
            raise ServerError(
                "tritonserver: expected the nvidia-pytriton package in this Python "
                f"({sys.prefix}), found none. Install it: pip install nvidia-pytriton==0.7.0"
            )
        root = Path(origin).parent / "tritonserver"
        stub = _stub(root)
        if not stub.is_file():
            raise ServerError(
                f"{stub}: no Triton Python backend for Python {PYTHON_VERSION} in this wheel. "
                "Use Python 3.11 with nvidia-pytriton==0.7.0."
            )
        return cls(root, _find_library_dir())

    def lay_out_backends(self, folder: Path) -> Path:
        """A backend directory in `folder` as tritonserver wants it, made of links: the stub must
        lie beside the backend, and the wheel keeps them apart."""
        python = folder / "backends" / "python"
        python.mkdir(parents=True)
        source = self.root / "backends" / "python"
        for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
            (python / name).symlink_to(source / name)
        stub = _stub(self.root)
        (python / stub.name).symlink_to(stub)
        return python.parent

    def environment(self) -> dict[str, str]:
        """This process's environment, changed so that the stub finds libpython and imports from
        the environment this interpreter runs in (its bin folder comes first in PATH)."""
        env = dict(os.environ)
        bin_dir = str(Path(sys.executable).parent)
        env["PATH"] = os.pathsep.join(filter(None, (bin_dir, env.get("PATH"))))
        libraries = (str(self.library_dir), env.get("LD_LIBRARY_PATH"))
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        env["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
        env.pop("PYTHONHOME", None)  # it would hide the environment's packages from the stub
        return env


def _stub(root: Path) -> Path:
    return root / "python_backend_stubs" / PYTHON_VERSION / "triton_python_backend_stub"


def _find_library_dir() -> Path:
    """Folder of libpython: this interpreter's own if it was built with one, else Debian's."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    candidates = (
        sysconfig.get_config_var("LIBDIR"),
        f"{sys.base_prefix}/lib",
        f"/usr/lib/{multiarch}",
        "/usr/lib64",
        "/usr/lib",
    )
    for folder in filter(None, candidates):
        if (Path(folder) / _LIBRARY).exists():
            return Path(folder)
    looked = ", ".join(str(folder) for folder in candidates if folder)
    raise ServerError(
        f"{_LIBRARY}: Triton's Python backend needs it, and it is in none of {looked}. "
        f"Install it: apt-get install libpython{PYTHON_VERSION}"
    )
