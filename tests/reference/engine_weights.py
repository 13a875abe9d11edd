"""Engine tensors of one rank straight from a transformers state dict, without `beam_trt.engine`:
an independent statement of how ranks split a model. NVFP4 values come from ModelOpt's own
primitives; FP8 is one division by the row's largest value over 448."""

import warnings

import torch
from transformers import BeamConfig, BeamForCausalLM

from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig

with warnings.catch_warnings():
    # ModelOpt warns about every transformers release newer than its own.
    warnings.simplefilter("ignore")
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

ACTIVATION_AMAX = 8.0
"""What the NVFP4 input scales of these weights pretend calibration saw."""


def engine_weights(
    model: BeamForCausalLM, mapping: Mapping, quant: QuantConfig
) -> dict[str, torch.Tensor]:
    """Every engine tensor of `mapping.rank`, from fp32 or bf16 `model`."""
    return _Rank(model.config, model.state_dict(), mapping, quant).tensors()


class _Rank:
    def __init__(
        self,
        config: BeamConfig,
        state: dict[str, torch.Tensor],
        mapping: Mapping,
        quant: QuantConfig,
    ) -> None:
        self.config, self.state, self.mapping, self.quant = config, state, mapping, quant
        self.tp, self.rank = mapping.tp_size, mapping.rank
        self.plain = torch.float32 if quant.precision is Precision.FP32 else torch.bfloat16
        self.out: dict[str, torch.Tensor] = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        self.put("embed_tokens", self.split(self.state["model.embed_tokens.weight"], 0))
        self.put("lm_head", self.split(self.state["lm_head.weight"], 0))
        self.put("norm", self.state["model.norm.weight"])
        for layer in range(self.config.num_hidden_layers):
            self.layer(f"model.layers.{layer}.", f"layers.{layer}.")
        return self.out

    def layer(self, source: str, target: str) -> None:
        for norm in ("input_", "post_attention_", "pre_feedforward_", "post_feedforward_"):
            self.put(f"{target}{norm}norm", self.state[f"{source}{norm}layernorm.weight"])
        self.attention(f"{source}self_attn.", f"{target}attention.")
        if f"{source}mlp.gate.weight" in self.state:
            self.moe(f"{source}mlp.", f"{target}moe.")
        else:
            gate, up = (self.state[f"{source}mlp.{n}_proj.weight"] for n in ("gate", "up"))
            amax = torch.maximum(gate.abs().max(), up.abs().max())
            rows = torch.cat((self.split(gate, 0), self.split(up, 0)))
            self.linear(f"{target}mlp.gate_up", rows, amax, is_expert=False)
            down = self.state[f"{source}mlp.down_proj.weight"]
            self.linear(f"{target}mlp.down", down, down.abs().max(), is_expert=False, columns=True)

    def attention(self, source: str, target: str) -> None:
        dim, kv_heads = self.config.head_dim, self.config.num_key_value_heads
        q, k, v, gate = (self.state[f"{source}{n}_proj.weight"] for n in ("q", "k", "v", "gate"))
        # Above one rank a KV head, ranks next to each other hold the same head.
        if self.tp <= kv_heads:
            local = slice(self.rank * kv_heads // self.tp, (self.rank + 1) * kv_heads // self.tp)
        else:
            head = self.rank // (self.tp // kv_heads)
            local = slice(head, head + 1)
        rows = slice(local.start * dim, local.stop * dim)
        amax = torch.stack([w.abs().max() for w in (q, k, v, gate)]).max()
        packed = torch.cat((self.split(q, 0), k[rows], v[rows], self.split(gate, 0)))
        self.linear(f"{target}qkvg", packed, amax, is_expert=False)
        o = self.state[f"{source}o_proj.weight"]
        self.linear(f"{target}o", o, o.abs().max(), is_expert=False, columns=True)
        self.put(f"{target}q_norm", self.state[f"{source}q_norm.weight"])
        self.put(f"{target}k_norm", self.state[f"{source}k_norm.weight"])
        self.put(f"{target}gate_bias", self.split(self.state[f"{source}gate_bias"], 0))

    def moe(self, source: str, target: str) -> None:
        self.out[f"{target}router"] = self.state[f"{source}gate.weight"].clone()
        self.out[f"{target}router_bias"] = self.state[f"{source}gate.e_score_correction_bias"]
        gate_up = self.state[f"{source}experts.gate_up_proj"]
        down = self.state[f"{source}experts.down_proj"]
        ep, inner_ranks = self.mapping.ep_size, self.tp // self.mapping.ep_size
        per_rank = gate_up.shape[0] // ep
        first = (self.rank // inner_ranks) * per_rank
        inner = down.shape[2] // inner_ranks
        at = (self.rank % inner_ranks) * inner
        experts = range(first, first + per_rank)
        gates, ups = gate_up[first : first + per_rank].chunk(2, dim=1)
        packed = torch.cat((gates[:, at : at + inner], ups[:, at : at + inner]), dim=1)
        amax = torch.stack([gate_up[e].abs().max() for e in experts])
        self.linear(f"{target}gate_up", packed, amax, is_expert=True)
        amax = torch.stack([down[e].abs().max() for e in experts])
        mine = down[first : first + per_rank]
        whole = self.row_scale(mine)
        self.linear(f"{target}down", mine[..., at : at + inner], amax, True, row_scale=whole)

    def linear(
        self,
        name: str,
        weight: torch.Tensor,
        amax: torch.Tensor,
        is_expert: bool,
        columns: bool = False,
        row_scale: torch.Tensor | None = None,
    ) -> None:
        """`columns`: keep this rank's share of the last dimension; scales stay the whole's."""
        row_scale = self.row_scale(weight) if row_scale is None else row_scale
        weight = (self.split(weight, -1) if columns else weight).contiguous()
        precision = self.quant.linear_precision(is_expert)
        if precision is Precision.NVFP4:
            scale_2 = (amax.float() / (6 * 448)).view(-1)
            matrices = weight.view(-1, *weight.shape[-2:]).to(torch.bfloat16)
            parts = [nvfp4_parts(m, s) for m, s in zip(matrices, scale_2, strict=True)]
            lead = weight.shape[:-2]
            self.out[f"{name}.weight"] = torch.stack([p[0] for p in parts]).view(
                *lead, *parts[0][0].shape
            )
            self.out[f"{name}.weight_scale"] = (
                torch.stack([p[1].view(torch.uint8) for p in parts])
                .view(*lead, *parts[0][1].shape)
                .view(torch.float8_e4m3fn)
            )
            self.out[f"{name}.weight_scale_2"] = scale_2
            self.out[f"{name}.input_scale"] = torch.full_like(scale_2, ACTIVATION_AMAX / (6 * 448))
        elif precision is Precision.FP8:
            quantized = (weight.float() / row_scale[..., None]).clamp(-448, 448)
            self.out[f"{name}.weight"] = quantized.to(torch.float8_e4m3fn)
            self.out[f"{name}.weight_scale"] = row_scale
        else:
            self.put(f"{name}.weight", weight)

    def row_scale(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.float().abs().amax(-1) / 448

    def split(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.chunk(self.tp, dim=dim)[self.rank]

    def put(self, name: str, tensor: torch.Tensor) -> None:
        self.out[name] = tensor.to(self.plain).contiguous().clone()


def nvfp4_parts(weight: torch.Tensor, scale_2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """ModelOpt's packed values and block scales of one matrix under the global scale `scale_2`."""
    scale, _ = NVFP4QTensor.get_weights_scaling_factor(weight, 16, scale_2)
    packed, scale, _ = NVFP4QTensor.quantize(weight.clone(), 16, scale, scale_2)
    return packed._quantized_data, scale
