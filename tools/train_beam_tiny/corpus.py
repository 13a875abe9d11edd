"""Plain English prose that every Python installation carries: docstrings of the standard library,
the pydoc topics and the licence. The order is fixed: the same Python gives the same text."""

import ast
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

_SKIPPED_FOLDERS = {
    "site-packages",
    "__pycache__",
    "lib2to3",
    "idlelib",
    "test",
    "tests",
    "turtledemo",
}
_MIN_CHARS = 200


def _docstrings(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, "name", path.stem)
                found.append(f"{name}: {text}")
    return found


def documents() -> list[str]:
    """Every document of the corpus once, in a fixed order.

    Docstrings of one module that are shorter than 200 characters are joined into one document.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    collected = [f"{name}\n\n{topics[name]}" for name in sorted(topics)]
    licence = library / "LICENSE.txt"
    if licence.is_file():
        collected.append(licence.read_text(encoding="utf-8"))
    for path in sorted(library.rglob("*.py")):
        if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(library).parts):
            short = []
            for text in _docstrings(path):
                if len(text) < _MIN_CHARS:
                    short.append(text)
                else:
                    collected.append(text)
            if short:
                collected.append("\n".join(short))
    return list(dict.fromkeys(collected))


def split_held_out(texts: list[str]) -> tuple[list[str], list[str]]:
    """(training, held-out): every fiftieth document is held out, a document is never in both."""
    held_out = texts[25::50]
    training = [text for i, text in enumerate(texts) if i % 50 != 25]
    return training, held_out
