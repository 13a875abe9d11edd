"""What a quantization did: sizes by part, error by layer, experts that calibration reached.

Plain numbers; needs no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MIN_COVERAGE = 0.95
"""Share of a layer's experts that calibration should reach; below it the report warns."""

PARTS = ("experts", "attention", "dense mlp", "router", "norm", "embedding", "lm_head")


def part_of(name: str) -> str:
    """Which of PARTS a checkpoint tensor belongs to."""
    if ".experts." in name:
        return "experts"
    if "norm" in name:
        return "norm"
    if ".self_attn." in name:
        return "attention"
    if ".mlp.gate." in name:
        return "router"
    if ".mlp." in name:
        return "dense mlp"
    return "lm_head" if name.startswith("lm_head") else "embedding"


def bytes_by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sum of tensor bytes for each part that occurs, in the order of PARTS."""
    sums = dict.fromkeys(PARTS, 0)
    for name, nbytes in sizes.items():
        sums[part_of(name)] += nbytes
    return {part: total for part, total in sums.items() if total}


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer. `relative_error` is |w - w_quantized| / |w| in the Frobenius norm over its
    quantized matrices, None where none is; `expert_tokens` is empty without calibration."""

    layer_idx: int
    relative_error: float | None
    expert_tokens: tuple[int, ...]

    @property
    def coverage(self) -> float | None:
        """Share of experts that saw at least one calibration token."""
        if not self.expert_tokens:
            return None
        return sum(count > 0 for count in self.expert_tokens) / len(self.expert_tokens)


@dataclass(frozen=True, slots=True)
class Report:
    """Sizes are bytes of tensor data by part, before and after; `sidecars` the files carried over;
    `relative_error` over all quantized matrices."""

    precision: str
    experts_only: bool
    bytes_before: Mapping[str, int]
    bytes_after: Mapping[str, int]
    relative_error: float | None
    layers: Sequence[LayerReport]
    num_samples: int
    num_calibration_tokens: int
    sidecars: Sequence[str]
    notes: Sequence[str]
    seconds: float

    @property
    def total_before(self) -> int:
        return sum(self.bytes_before.values())

    @property
    def total_after(self) -> int:
        return sum(self.bytes_after.values())

    @property
    def warnings(self) -> list[str]:
        """What a user should know before trusting the result; one sentence each."""
        found = list(self.notes)
        for layer in self.layers:
            if layer.coverage is not None and layer.coverage < MIN_COVERAGE:
                unseen = layer.expert_tokens.count(0)
                found.append(
                    f"layer {layer.layer_idx}: {unseen} of {len(layer.expert_tokens)} experts saw "
                    "no calibration token; their weights are exact, the layer's input_scale comes "
                    "from the other experts. More or more varied calibration text reaches them."
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **asdict(self),
            "layers": [{**asdict(layer), "coverage": layer.coverage} for layer in self.layers],
            "total_before": self.total_before,
            "total_after": self.total_after,
            "warnings": self.warnings,
        }
