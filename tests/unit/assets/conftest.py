"""beam-tiny as transformers loads it from the folder that `beam-trt model tiny` writes."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from beam_trt.assets import beam_tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("assets") / "beam-tiny"
    beam_tiny.write(out_dir)
    return out_dir


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)
