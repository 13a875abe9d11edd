"""All ranks' shards put together again are the checkpoint, bit by bit.

The putting together is written here on its own, from BEAM.md's layout, without engine.layout.
"""

import random
from pathlib import Path

import pytest
import torch
from checkpoints import small_config
from engine.random_checkpoints import write_random_checkpoint
from safetensors import safe_open
from transformers import BeamConfig

from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.tensors import engine_tensors
from beam_trt.engine.build import build_engine
from beam_trt.engine.manifest import EngineConfig

Tensors = dict[str, torch.Tensor]
LAYOUTS = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4)]


def random_config(rng: random.Random) -> BeamConfig:
    """A legal random shape for every layout of LAYOUTS and NVFP4."""
    kv_heads = rng.choice([1, 2, 4])
    groups = rng.choice([1, 2, 4])
    num_experts = groups * rng.choice([4, 8])
    return small_config(
        vocab_size=4 * rng.randint(5, 40),
        hidden_size=16 * rng.randint(1, 5),
        intermediate_size=64 * rng.randint(1, 3),
        num_hidden_layers=rng.randint(4, 8),
        num_attention_heads=rng.choice([4, 8, 12]),
        num_key_value_heads=kv_heads,
        head_dim=16,
        moe_intermediate_size=64 * rng.randint(1, 2),
        num_experts=num_experts,
        n_group=groups,
        topk_group=1,
        num_experts_per_tok=rng.randint(1, 4),
    )


def read_ranks(engine_dir: Path, tp_size: int) -> list[Tensors]:
    ranks = []
    for rank in range(tp_size):
        with safe_open(engine_dir / f"rank{rank}.safetensors", "pt") as file:
            ranks.append({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return ranks


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


class Reassembled:
    """Takes ranks apart into checkpoint tensors and marks what it has accounted for."""

    def __init__(self, config: BeamConfig, ranks: list[Tensors], tp: int, ep: int) -> None:
        self.config, self.ranks, self.tp, self.ep = config, ranks, tp, ep
        self.tensors: Tensors = {}
        for name in ("embed_tokens", "lm_head"):
            checkpoint = "lm_head" if name == "lm_head" else "model.embed_tokens"
            self.tensors[f"{checkpoint}.weight"] = torch.cat(self.take(name))
        self.same("norm", "model.norm.weight")
        for layer_idx in range(config.num_hidden_layers):
            self.layer(layer_idx)
        left = {name for rank in ranks for name in rank}
        assert not left, f"in the engine but in no checkpoint tensor: {left}"

    def take(self, name: str) -> list[torch.Tensor]:
        return [rank.pop(name) for rank in self.ranks]

    def same(self, name: str, checkpoint: str) -> None:
        first, *others = self.take(name)
        for other in others:
            assert torch.equal(bits(first), bits(other)), name
        self.tensors[checkpoint] = first

    def layer(self, layer_idx: int) -> None:
        ours, theirs = f"layers.{layer_idx}.", f"model.layers.{layer_idx}."
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            self.same(f"{ours}{norm}_norm", f"{theirs}{norm}_layernorm.weight")
        for norm in ("q_norm", "k_norm"):
            self.same(f"{ours}attention.{norm}", f"{theirs}self_attn.{norm}.weight")
        bias = torch.cat(self.take(f"{ours}attention.gate_bias"))
        self.tensors[f"{theirs}self_attn.gate_bias"] = bias
        self.attention(f"{ours}attention.", f"{theirs}self_attn.")
        if self.config.mlp_layer_types[layer_idx] == "sparse":
            self.same(f"{ours}moe.router", f"{theirs}mlp.gate.weight")
            self.same(f"{ours}moe.router_bias", f"{theirs}mlp.gate.e_score_correction_bias")
            self.experts(f"{ours}moe.", f"{theirs}mlp.experts.")
        else:
            self.dense(f"{ours}mlp.", f"{theirs}mlp.")

    def kinds(self, name: str) -> list[str]:
        all_kinds = ("weight", "weight_scale", "weight_scale_2", "input_scale")
        return [kind for kind in all_kinds if f"{name}.{kind}" in self.ranks[0]]

    def attention(self, ours: str, theirs: str) -> None:
        q = self.config.num_attention_heads // self.tp * self.config.head_dim
        kv_heads = self.config.num_key_value_heads
        kv = max(1, kv_heads // self.tp) * self.config.head_dim
        copies = max(1, self.tp // kv_heads)
        for kind in self.kinds(f"{ours}qkvg"):
            found = self.take(f"{ours}qkvg.{kind}")
            if kind in ("weight_scale_2", "input_scale"):
                for proj in ("q", "k", "v", "gate"):
                    self.scalar(found, f"{theirs}{proj}_proj.{kind}")
                continue
            cuts = [tensor.split([q, kv, kv, q]) for tensor in found]
            for i, proj in enumerate(("q", "k", "v", "gate")):
                parts = [cut[i] for cut in cuts]
                if proj in ("k", "v"):
                    for at in range(0, self.tp, copies):
                        for other in parts[at : at + copies]:
                            assert torch.equal(bits(parts[at]), bits(other)), f"{ours}{proj}"
                    parts = parts[::copies]
                self.put(f"{theirs}{proj}_proj.{kind}", torch.cat(parts))
        self.columns(f"{ours}o", f"{theirs}o_proj", list(range(self.tp)))

    def dense(self, ours: str, theirs: str) -> None:
        self.gate_up(f"{ours}gate_up", theirs, list(range(self.tp)))
        self.columns(f"{ours}down", f"{theirs}down_proj", list(range(self.tp)))

    def experts(self, ours: str, theirs: str) -> None:
        ranks, num_local = self.ranks, self.config.num_experts // self.ep
        sharing = self.tp // self.ep
        names = [n for n in ranks[0] if n.startswith((f"{ours}gate_up.", f"{ours}down."))]
        stacks = {name: self.take(name) for name in names}
        for expert_idx in range(self.config.num_experts):
            holders = range(
                expert_idx // num_local * sharing, (expert_idx // num_local + 1) * sharing
            )
            self.ranks = [{} for _ in range(self.tp)]
            for name, stack in stacks.items():
                for rank in holders:
                    local = stack[rank][expert_idx % num_local]
                    is_scalar = name.endswith(("weight_scale_2", "input_scale"))
                    self.ranks[rank][name] = local.reshape(1) if is_scalar else local
            self.ranks = [self.ranks[rank] for rank in holders]
            order = list(range(sharing))
            self.gate_up(f"{ours}gate_up", f"{theirs}{expert_idx}.", order)
            self.columns(f"{ours}down", f"{theirs}{expert_idx}.down_proj", order)
            assert not any(self.ranks)
        self.ranks = ranks

    def gate_up(self, ours: str, theirs: str, order: list[int]) -> None:
        for kind in self.kinds(ours):
            found = self.take(f"{ours}.{kind}")
            for i, proj in enumerate(("gate_proj", "up_proj")):
                if kind in ("weight_scale_2", "input_scale"):
                    self.scalar(found, f"{theirs}{proj}.{kind}")
                else:
                    rows = torch.cat([found[rank].chunk(2)[i] for rank in order])
                    self.put(f"{theirs}{proj}.{kind}", rows)

    def columns(self, ours: str, theirs: str, order: list[int]) -> None:
        for kind in self.kinds(ours):
            found = self.take(f"{ours}.{kind}")
            if found[0].dim() == 1 and kind == "weight_scale":
                for other in found:
                    assert torch.equal(bits(found[0]), bits(other)), ours
                self.put(f"{theirs}.{kind}", found[0])
            elif kind in ("weight_scale_2", "input_scale"):
                self.scalar(found, f"{theirs}.{kind}")
            else:
                together = (
                    torch.cat([found[rank].view(torch.uint8) for rank in order], dim=-1)
                    if (found[0].element_size() == 1)
                    else torch.cat([found[rank] for rank in order], dim=-1)
                )
                self.tensors[f"{theirs}.{kind}"] = together

    def scalar(self, found: list[torch.Tensor], checkpoint: str) -> None:
        for other in found:
            assert other.shape == (1,)
            assert torch.equal(found[0], other), checkpoint
        self.tensors[checkpoint] = found[0].reshape(())

    def put(self, name: str, tensor: torch.Tensor) -> None:
        is_row_scale = name.endswith("weight_scale") and tensor.dtype == torch.float32
        self.tensors[name] = tensor.reshape(-1, 1) if is_row_scale else tensor


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("seed", range(3))
def test_every_bit_of_the_checkpoint_is_in_the_ranks(
    tmp_path: Path, precision: Precision, seed: int
) -> None:
    config = random_config(random.Random(seed))
    quant = QuantConfig(precision, experts_only=precision.is_quantized and seed == 1)
    source = write_random_checkpoint(tmp_path / "model", quant, config, seed)
    for tp_size, ep_size in LAYOUTS:
        engine_dir = tmp_path / f"tp{tp_size}-ep{ep_size}"
        mapping = Mapping(tp_size, ep_size)
        build_engine(tmp_path / "model", engine_dir, quant, mapping, BuildConfig(1024))
        ranks = read_ranks(engine_dir, tp_size)
        check_table(engine_dir, ranks)
        found = Reassembled(config, ranks, tp_size, ep_size).tensors
        assert found.keys() == source.keys()
        for name, tensor in source.items():
            assert torch.equal(bits(found[name]), bits(tensor)), f"{name} {tp_size=} {ep_size=}"


def check_table(engine_dir: Path, ranks: list[Tensors]) -> None:
    """The files hold exactly what config.tensors says, each tensor aligned to its elements."""
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8}
    dtypes["F8_E4M3"] = torch.float8_e4m3fn
    engine = EngineConfig.load(engine_dir)
    for rank, tensors in enumerate(ranks):
        specs = engine_tensors(engine.model, engine.quant, engine.mapping.with_rank(rank))
        wanted = {spec.name: (dtypes[spec.dtype], spec.shape) for spec in specs}
        assert {n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()} == wanted
        for name, tensor in tensors.items():
            assert tensor.data_ptr() % tensor.element_size() == 0, name
