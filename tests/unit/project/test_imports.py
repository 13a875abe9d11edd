"""The dependency direction of the architecture, read from the source files."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "beam_trt"

ALLOWED = {
    "errors": set(),
    "config": {"errors"},
    "assets": {"errors", "config", "checkpoint"},
    "checkpoint": {"errors", "config"},
    "quantize": {"errors", "config", "assets", "checkpoint"},
    "model": {"errors", "config", "checkpoint", "engine.manifest", "plugins"},
    "engine": {"errors", "config", "assets", "checkpoint", "quantize", "model", "triton"},
    "runtime": {"errors", "config", "engine.manifest", "model", "plugins"},
    "serving": {"errors", "config", "engine.manifest", "runtime"},
    "triton": {"errors", "config", "engine.manifest", "checkpoint", "runtime", "serving"},
    "client": {"errors", "config", "serving", "triton"},
    "planner": {"errors", "config"},
    "doctor": {"errors", "config", "triton"},
    "bench": {"errors", "config", "client", "runtime", "serving"},
}
"""What each part may import besides itself; `cli` may import everything, nothing imports `cli`."""

NO_TORCH = ["errors.py", "config", "runtime/scheduler.py", "runtime/block_pool.py"]
NO_TORCH += ["runtime/kv_cache.py", "runtime/request.py", "runtime/stats.py"]


def imports_of(path: Path) -> set[str]:
    """Absolute names of the modules a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.name))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in ("cli", "__init__"):
        return
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top == "beam_trt_plugins":
            assert "plugins" in ALLOWED[part], f"{path}: imports {name}"
        elif top == "beam_trt" and rest != "__version__":
            target = rest.split(".")[0]
            fits = target == part or any(
                rest == allowed or rest.startswith(f"{allowed}.") for allowed in ALLOWED[part]
            )
            assert fits, f"{path}: imports {name}, allowed are {sorted(ALLOWED[part])}"


def test_every_part_is_in_the_table() -> None:
    parts = {part_of(p) for p in PACKAGE.rglob("*.py")} - {"cli", "__init__"}
    assert parts <= set(ALLOWED)


def test_plugins_know_only_torch() -> None:
    for path in (ROOT / "plugins").rglob("*.py"):
        assert not any(n.split(".")[0] == "beam_trt" for n in imports_of(path)), path


@pytest.mark.parametrize("where", NO_TORCH)
def test_pure_parts_import_no_torch(where: str) -> None:
    target = PACKAGE / where
    for path in [target] if target.suffix else sorted(target.rglob("*.py")):
        for name in imports_of(path):
            assert name.split(".")[0] not in ("torch", "transformers", "numpy"), f"{path}: {name}"


def test_no_module_is_past_five_hundred_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in (PACKAGE, ROOT / "plugins", ROOT / "tools")
        for path in folder.rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert not long
