"""Engines' logits against transformers' BeamForCausalLM, token by token on the same text."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from beam_trt.engine.manifest import EngineConfig
from beam_trt.engine.thread_ranks import ThreadRanks
from beam_trt.errors import CheckpointError, ConfigError

MAX_TOKENS = 256
"""Tokens taken of each text unless everything is compared: past the window of beam-tiny (64) and
its full-attention scale's first steps."""

NUM_TEXTS = 16
"""Texts compared unless everything is."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One engine against the reference.

    kl: mean over tokens of KL(reference || engine), in nats. max_kl: the largest one.
    top1: share of tokens where both prefer the same next token.
    perplexity, reference_perplexity: exp of the mean negative log-likelihood of the text.
    """

    name: str
    num_tokens: int
    kl: float
    max_kl: float
    top1: float
    perplexity: float
    reference_perplexity: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Sums:
    """Running sums over tokens, fp64."""

    tokens: int = 0
    predicted: int = 0
    kl: float = 0.0
    max_kl: float = 0.0
    same: int = 0
    nll: float = 0.0
    reference_nll: float = 0.0
    finite: bool = field(default=True)

    def add(self, reference: torch.Tensor, found: torch.Tensor, token_ids: list[int]) -> None:
        """Logits [num_tokens, vocab_size] of both, fp32, of one text."""
        expected_log = reference.double().log_softmax(-1)
        found_log = found.double().log_softmax(-1)
        kl = (expected_log.exp() * (expected_log - found_log)).sum(-1)
        self.finite &= bool(found.isfinite().all())
        self.tokens += len(token_ids)
        self.kl += kl.sum().item()
        self.max_kl = max(self.max_kl, kl.max().item())
        self.same += int((reference.argmax(-1) == found.argmax(-1)).sum())
        following = torch.tensor(token_ids[1:]).unsqueeze(-1)
        self.predicted += len(token_ids) - 1
        self.nll -= found_log[:-1].gather(-1, following).sum().item()
        self.reference_nll -= expected_log[:-1].gather(-1, following).sum().item()

    def result(self, name: str) -> Comparison:
        if not self.finite:
            raise ConfigError(
                f"{name}: its logits are not finite. Quantize again, or use a wider precision."
            )
        return Comparison(
            name=name,
            num_tokens=self.tokens,
            kl=self.kl / self.tokens,
            max_kl=self.max_kl,
            top1=self.same / self.tokens,
            perplexity=torch.tensor(self.nll / self.predicted).exp().item(),
            reference_perplexity=torch.tensor(self.reference_nll / self.predicted).exp().item(),
        )


def compare(
    engines: dict[str, Path],
    reference: Path,
    samples: Sequence[list[int]],
    progress: Callable[[int, int], None] | None = None,
) -> list[Comparison]:
    """One Comparison for each engine, in order, on the same token ids.

    The reference is transformers in fp32 with eager attention and experts: the weights of
    `reference` are exact in it, so what is measured is the engine's own rounding. Peak memory: the
    reference in fp32, and two texts' logits. Raises CheckpointError where an engine cannot be of
    the same model, EngineError where it is damaged.
    """
    if not any(len(ids) > 1 for ids in samples):
        raise ConfigError("verify: needs at least one text of two tokens, found none.")
    with ExitStack() as stack:
        ranks = {}
        for name, path in engines.items():
            engine = EngineConfig.load(path)
            engine.check_start(sm=None)
            ranks[name] = stack.enter_context(ThreadRanks(engine))
        forward = _load_reference(reference)
        sums = {name: _Sums() for name in engines}
        longest = min(rank.engine.build.max_seq_len for rank in ranks.values())
        kept = [ids[:longest] for ids in samples if len(ids[:longest]) > 1]
        for done, token_ids in enumerate(kept):
            expected = forward(token_ids)
            for name, rank in ranks.items():
                found = rank.logits(token_ids)
                if found.shape != expected.shape:
                    raise CheckpointError(
                        f"{reference}: expected the model of {name} with a vocabulary of "
                        f"{found.shape[-1]}, found one of {expected.shape[-1]}."
                    )
                sums[name].add(expected, found, token_ids)
            if progress:
                progress(done + 1, len(kept))
    return [sums[name].result(name) for name in engines]


def held_out_samples(reference: Path, take_all: bool = False) -> list[list[int]]:
    """The held-out texts in the reference's own tokens; a sample of them unless `take_all`.
    CheckpointError where the reference has no tokenizer."""
    from beam_trt import assets
    from beam_trt.quantize.texts import tokenize

    texts = assets.held_out_texts()
    if take_all:
        return tokenize(reference, texts, len(texts))
    # Prose comes first and dialogues after it: every n-th text sees both.
    chosen = texts[:: max(1, len(texts) // NUM_TEXTS)][:NUM_TEXTS]
    return [ids[:MAX_TOKENS] for ids in tokenize(reference, chosen, NUM_TEXTS)]


def _load_reference(folder: Path) -> Callable[[list[int]], torch.Tensor]:
    from transformers import BeamForCausalLM

    from beam_trt.checkpoint.index import CheckpointIndex
    from beam_trt.checkpoint.validate import validate

    index = CheckpointIndex.open(folder)
    validate(index)
    if index.precision.is_quantized:
        raise CheckpointError(
            f"{folder}: expected an unquantized reference, found {index.precision}. "
            "Give the original model."
        )
    with _quiet_transformers():
        # Grouped experts differ from eager ones by rounding; eager is the definition.
        model = BeamForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        ).eval()

    def forward(token_ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            out = model(torch.tensor([token_ids]), use_cache=False)
        logits: torch.Tensor = out.logits[0].float()
        return logits

    return forward


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No loading bar of transformers between ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def named_engines(paths: Sequence[Path]) -> dict[str, Path]:
    """A short unique name for each engine: its precision, with its ranks where that is not enough,
    with its folder where neither is."""
    engines = [EngineConfig.load(path) for path in paths]
    plain = [str(engine.quant.precision) for engine in engines]
    ranked = [f"{n} tp{e.mapping.tp_size}" for n, e in zip(plain, engines, strict=True)]
    full = [f"{n} {path}" for n, path in zip(ranked, paths, strict=True)]
    names = next((ns for ns in (plain, ranked, full) if len(set(ns)) == len(ns)), full)
    return dict(zip(names, paths, strict=True))
