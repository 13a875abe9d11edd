"""One engine of beam-tiny over two ranks, and one real tritonserver on it, for most tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from triton_serving import MAX_TOKENS, TEXTS, server_options

from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.runtime.local import GenerationResult, generate
from beam_trt.runtime.request import SamplingParams
from beam_trt.serving.text import Tokenizer
from beam_trt.triton.repository import write_repository
from beam_trt.triton.server import TritonServer


@pytest.fixture(scope="session")
def build_dir(beam_tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build folder as `beam-trt build` leaves it: engine/ and triton_repo/."""
    from beam_trt.engine.build import build_engine

    folder = tmp_path_factory.mktemp("build")
    build_engine(
        beam_tiny,
        folder / "engine",
        QuantConfig(Precision.BF16),
        Mapping(tp_size=2),
        BuildConfig(max_seq_len=1024),
    )
    write_repository(folder / "engine", folder / "triton_repo")
    return folder


@pytest.fixture(scope="session")
def tokenizer(build_dir: Path) -> Tokenizer:
    return Tokenizer(build_dir / "engine" / "tokenizer")


@pytest.fixture(scope="session")
def greedy(build_dir: Path, tokenizer: Tokenizer) -> list[GenerationResult]:
    """What the engine answers to TEXTS in this process, without any server."""
    prompts = [tokenizer.encode(text) for text in TEXTS]
    return generate(build_dir / "engine", prompts, SamplingParams(max_tokens=MAX_TOKENS))


@pytest.fixture(scope="session")
def greedy_texts(tokenizer: Tokenizer, greedy: list[GenerationResult]) -> list[str]:
    """Their texts by transformers' own decode, without the token that stopped them."""
    texts = []
    for result in greedy:
        ids = result.token_ids if result.stop_token_id is None else result.token_ids[:-1]
        texts.append(tokenizer.hf.decode(ids, skip_special_tokens=True))
    return texts


@pytest.fixture(scope="session")
def server(build_dir: Path) -> Iterator[TritonServer]:
    with TritonServer(server_options(build_dir / "triton_repo")) as running:
        yield running
