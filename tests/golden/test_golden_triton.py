"""The generated Triton repository, compared as text; `make golden` rewrites it."""

from pathlib import Path

import pytest

from beam_trt import __version__
from beam_trt.triton.repository import render_repository

GOLDEN = Path(__file__).parent / "triton_repo"


@pytest.mark.parametrize("name", sorted(render_repository("../engine")))
def test_generated_file(name: str, request: pytest.FixtureRequest) -> None:
    text = render_repository("../engine")[name].replace(
        f"beam-trt {__version__}", "beam-trt VERSION"
    )
    path = GOLDEN / name
    if request.config.getoption("--rewrite-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
