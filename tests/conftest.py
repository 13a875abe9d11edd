"""What all tests share: quiet libraries, few threads, and fixtures that build once a session."""

import os
import signal
from pathlib import Path

import pytest

# A shell starts background jobs with SIGINT ignored, and children inherit that; tests that press
# Ctrl-C need it to arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Must be set before torch and the tokenizers library are imported.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="Write tests/golden/ anew instead of comparing.",
    )


@pytest.fixture(scope="session")
def beam_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled trained model, as `beam-trt model tiny` writes it."""
    from beam_trt.assets import beam_tiny

    folder = tmp_path_factory.mktemp("beam_tiny") / "model"
    beam_tiny.write(folder)
    return folder
