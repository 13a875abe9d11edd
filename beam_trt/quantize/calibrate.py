"""The calibration forward: what enters each linear when the model reads real text.

Runs transformers' own Beam modules in bf16 one layer at a time, and the routed experts one expert
at a time, in the order and with the roundings of transformers' eager experts, so the maxima are
bit for bit those of ModelOpt's max calibration. Knows nothing about quantized formats.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import BeamConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.beam.modeling_beam import (
    BeamDecoderLayer,
    BeamRotaryEmbedding,
    compute_attention_scaling,
    depth_scaled_residual_add,
)

from beam_trt.checkpoint import names
from beam_trt.checkpoint.names import Site
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.config.model import FULL, SLIDING
from beam_trt.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class LayerCalibration:
    """What one layer saw: the largest magnitude at each input, and tokens per routed expert (empty
    for a dense layer)."""

    layer_idx: int
    input_amax: dict[Site, float]
    expert_tokens: tuple[int, ...]


@dataclass
class _Sample:
    """One text on its way through the layers. `hidden` bf16 [1, num_tokens, hidden_size]."""

    hidden: torch.Tensor
    positions: torch.Tensor
    masks: dict[str, torch.Tensor | None]
    rotary: tuple[torch.Tensor, torch.Tensor] | None
    scaling: torch.Tensor


@dataclass
class _Maxima:
    """Running maxima per site."""

    of: dict[Site, float] = field(default_factory=dict)

    def add(self, site: Site, inputs: torch.Tensor) -> None:
        if inputs.numel():
            found = float(inputs.abs().amax())
            # max() drops a NaN that comes second; keep it, so that it is reported.
            before = self.of.get(site, 0.0)
            self.of[site] = found if found != found else max(before, found)


class Calibrator:
    """Carries all samples through the model, layer by layer.

    Peak memory: every sample's hidden state twice, one layer's attention (or dense MLP) weights and
    one expert; at the start also the embedding table.
    """

    def __init__(
        self,
        reader: CheckpointReader,
        samples: Sequence[Sequence[int]],
        start_layer: int = 0,
        hidden_states: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """`samples` are token ids. To continue at `start_layer`, give the `hidden_states` that the
        layer before it left, one bf16 [num_tokens, hidden_size] a sample."""
        assert samples, "the caller refuses to calibrate on nothing"
        self._reader = reader
        self._start_layer = start_layer
        self._config = reader.index.config
        self._hf_config = BeamConfig.from_pretrained(reader.index.folder)
        self._hf_config._attn_implementation = "sdpa"
        self._samples = self._begin(samples, hidden_states)

    @property
    def hidden_states(self) -> list[torch.Tensor]:
        """What the layers so far left of each sample, bf16 [num_tokens, hidden_size]."""
        return [sample.hidden[0] for sample in self._samples]

    def layers(self) -> Iterator[LayerCalibration]:
        """One LayerCalibration a layer, in order. Raises CheckpointError where activations are not
        finite."""
        for layer_idx in range(self._start_layer, self._config.num_hidden_layers):
            # Not around the yield: the caller's gradients are its own affair.
            with torch.no_grad():
                calibration = self._run_layer(layer_idx)
            yield calibration

    def _run_layer(self, layer_idx: int) -> LayerCalibration:
        maxima = _Maxima()
        layer = self._load_layer(layer_idx)
        for sample in self._samples:
            self._attention(layer, layer_idx, sample, maxima)
        if self._config.is_moe(layer_idx):
            expert_tokens = self._moe(layer, layer_idx, maxima)
        else:
            self._dense(layer, maxima)
            expert_tokens = ()
        for site, largest in maxima.of.items():
            if not largest < float("inf"):
                raise CheckpointError(
                    f"{self._reader.index.folder}: layer {layer_idx}: the calibration forward "
                    f"gives {largest} at {site}, expected finite activations. Check the "
                    "weights of this layer and the ones before it."
                )
        return LayerCalibration(layer_idx, maxima.of, expert_tokens)

    def _begin(
        self,
        samples: Sequence[Sequence[int]],
        hidden_states: Sequence[torch.Tensor] | None,
    ) -> list[_Sample]:
        if hidden_states is None:
            table = self._bf16(names.EMBED_TOKENS)
            hidden_states = [F.embedding(torch.tensor(list(ids)), table) for ids in samples]
        rotary = BeamRotaryEmbedding(self._hf_config)
        has_sliding = self._config.num_sliding_layers > 0
        begun = []
        for ids, state in zip(samples, hidden_states, strict=True):
            hidden = state[None]
            positions = torch.arange(len(ids))[None]
            about: dict[str, Any] = {
                "config": self._hf_config,
                "inputs_embeds": hidden,
                "attention_mask": None,
                "cache": None,
                "position_ids": positions,
            }
            masks = {
                FULL: create_causal_mask(**about),
                SLIDING: create_sliding_window_causal_mask(**about),
            }
            cos_sin = rotary(hidden, positions, SLIDING) if has_sliding else None
            scaling = compute_attention_scaling(positions)
            begun.append(_Sample(hidden, positions, masks, cos_sin, scaling))
        return begun

    def _bf16(self, name: str) -> torch.Tensor:
        return self._reader.tensor(name).to(torch.bfloat16)

    def _load_layer(self, layer_idx: int) -> Any:
        """transformers' layer with its weights, except routed experts, which stay unallocated."""
        with torch.device("meta"):
            layer = BeamDecoderLayer(self._hf_config, layer_idx).eval()
        state = {}
        for key in layer.state_dict():
            if ".experts." in f".{key}.":
                continue
            name = names.layer(layer_idx) + key
            tensor = self._reader.tensor(name)
            is_router = name in (names.router_weight(layer_idx), names.router_bias(layer_idx))
            state[key] = tensor if is_router else tensor.to(torch.bfloat16)
        layer.load_state_dict(state, assign=True, strict=False)
        return layer

    def _attention(self, layer: Any, layer_idx: int, sample: _Sample, maxima: _Maxima) -> None:
        is_full = self._config.is_full(layer_idx)
        normed = layer.input_layernorm(sample.hidden)
        maxima.add(Site.ATTENTION_IN, normed)
        with _watching(layer.self_attn.o_proj, Site.ATTENTION_OUT, maxima):
            branch, _ = layer.self_attn(
                hidden_states=normed,
                position_embeddings=None if is_full else sample.rotary,
                attention_mask=sample.masks[FULL if is_full else SLIDING],
                position_ids=sample.positions,
                attention_scaling=sample.scaling if is_full else None,
            )
        branch = layer.post_attention_layernorm(branch)
        sample.hidden = depth_scaled_residual_add(
            branch, sample.hidden, layer.attn_residual_add_idx
        )

    def _dense(self, layer: Any, maxima: _Maxima) -> None:
        with _watching(layer.mlp.down_proj, Site.DENSE_OUT, maxima):
            for sample in self._samples:
                normed = layer.pre_feedforward_layernorm(sample.hidden)
                maxima.add(Site.DENSE_IN, normed)
                _add_mlp(layer, sample, layer.mlp(normed))

    def _moe(self, layer: Any, layer_idx: int, maxima: _Maxima) -> tuple[int, ...]:
        routed = []
        for sample in self._samples:
            normed = layer.pre_feedforward_layernorm(sample.hidden)
            maxima.add(Site.EXPERT_IN, normed)
            flat = normed.flatten(0, 1)
            _, weights, experts = layer.mlp.gate(flat)
            routed.append((flat, weights, experts, torch.zeros_like(flat)))
        counts = []
        for expert_idx in range(self._config.num_experts):
            counts.append(sum(int((experts == expert_idx).sum()) for _, _, experts, _ in routed))
            if counts[-1] == 0:
                continue
            gate, up, down = (
                self._bf16(f"{names.expert_proj(layer_idx, expert_idx, proj)}.weight")
                for proj in ("gate_proj", "up_proj", "down_proj")
            )
            gate_up = torch.cat((gate, up))
            for flat, weights, experts, total in routed:
                # Rows in the order in which transformers' eager experts take them: by choice
                # (first, second, ...), then by token.
                choice, token = torch.where((experts == expert_idx).T)
                if len(token):
                    into = _activate(F.linear(flat[token], gate_up))
                    maxima.add(Site.EXPERT_OUT, into)
                    out = F.linear(into, down) * weights[token, choice, None]
                    total.index_add_(0, token, out.to(total.dtype))
        for sample, (_, _, _, total) in zip(self._samples, routed, strict=True):
            branch = total * layer.mlp.routed_scaling_factor
            _add_mlp(layer, sample, branch.view_as(sample.hidden))
        return tuple(counts)


def _activate(gate_up: torch.Tensor) -> torch.Tensor:
    """SwiGLU in FP32 with one rounding, as Beam defines it: [.., 2 n] -> [.., n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)


def _add_mlp(layer: Any, sample: _Sample, branch: torch.Tensor) -> None:
    branch = layer.post_feedforward_layernorm(branch)
    sample.hidden = depth_scaled_residual_add(branch, sample.hidden, layer.mlp_residual_add_idx)


class _watching:
    """Records what enters a module while the block runs."""

    def __init__(self, module: torch.nn.Module, site: Site, maxima: _Maxima) -> None:
        self._handle = module.register_forward_pre_hook(
            lambda _, inputs: maxima.add(site, inputs[0])
        )

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
