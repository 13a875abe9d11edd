"""The Beam forward for training: plain torch, every expert computed as one wide MLP, several
documents packed in a row. Parameter names are BeamForCausalLM's, so a state dict moves both ways;
a test holds the two equal.

Knows nothing about caches or generation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed rows. tokens [rows, length] int64; documents and positions the same shape: which
    document of the row a token belongs to, and its place in it; real: False for padding."""

    tokens: torch.Tensor
    documents: torch.Tensor
    positions: torch.Tensor
    real: torch.Tensor


class RMSNorm(nn.Module):  # type: ignore[misc]
    """fp32 x * rsqrt(mean(x^2) + eps) * w, then the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * (wide * scale)).to(x.dtype)


class Linear(nn.Module):  # type: ignore[misc]
    """A bias-free projection that keeps an fp32 master weight and computes in the input's dtype."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features) * in_features**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: dict[str, Any], full: bool) -> None:
        super().__init__()
        hidden, eps = shape["hidden_size"], shape["rms_norm_eps"]
        self.head_dim = shape["head_dim"]
        heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        self.full = full
        self.q_proj = Linear(hidden, heads * self.head_dim)
        self.k_proj = Linear(hidden, kv_heads * self.head_dim)
        self.v_proj = Linear(hidden, kv_heads * self.head_dim)
        self.gate_proj = Linear(hidden, heads * self.head_dim)
        self.o_proj = Linear(heads * self.head_dim, hidden)
        self.gate_bias = nn.Parameter(torch.zeros(heads))
        self.q_norm = RMSNorm(self.head_dim, eps)
        self.k_norm = RMSNorm(self.head_dim, eps)

    def forward(
        self,
        x: torch.Tensor,
        attend: Attend,
        rope: tuple[torch.Tensor, torch.Tensor],
        scale: torch.Tensor,
    ) -> torch.Tensor:
        split = (*x.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(x).view(split)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(split)).transpose(1, 2)
        v = self.v_proj(x).view(split).transpose(1, 2)
        if self.full:
            q = (q.float() * scale).to(q.dtype)
        else:
            q, k = _rotate(q, *rope), _rotate(k, *rope)
        mixed = attend(q, k, v).transpose(1, 2)
        gate = self.gate_proj(x).view(split) + self.gate_bias.to(x.dtype)[:, None]
        return self.o_proj((mixed * torch.sigmoid(gate)).flatten(-2))


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


class DenseMLP(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        hidden, inner = shape["hidden_size"], shape["intermediate_size"]
        self.gate_proj = Linear(hidden, inner)
        self.up_proj = Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(_swiglu(self.gate_proj(x), self.up_proj(x)))
        return out


class Router(nn.Module):  # type: ignore[misc]
    """Grouped sigmoid router in fp32; returns [tokens, experts] weights, zero where not chosen."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.num_groups, self.kept_groups = shape["n_group"], shape["topk_group"]
        self.top_k = shape["num_experts_per_tok"]
        experts = shape["num_experts"]
        self.weight = nn.Parameter(torch.randn(experts, shape["hidden_size"]) * 0.02)
        self.e_score_correction_bias = nn.Buffer(torch.zeros(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x.float(), self.weight).sigmoid()
        with torch.no_grad():
            choice = scores + self.e_score_correction_bias
            groups = choice.unflatten(-1, (self.num_groups, -1))
            best = groups.topk(2, dim=-1).values.sum(-1).topk(self.kept_groups, dim=-1).indices
            kept = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1.0)
            choice = groups.masked_fill(kept[..., None] == 0, float("-inf")).flatten(-2)
            chosen = torch.zeros_like(scores).scatter(-1, choice.topk(self.top_k, -1).indices, 1.0)
        picked = scores * chosen
        return picked / (picked.sum(-1, keepdim=True) + 1e-20)


class Experts(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        count, inner = shape["num_experts"], shape["moe_intermediate_size"]
        hidden = shape["hidden_size"]
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * inner, hidden) * hidden**-0.5)
        self.down_proj = nn.Parameter(torch.randn(count, hidden, inner) * inner**-0.5)


class MoE(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.gate = Router(shape)
        self.experts = Experts(shape)
        self.factor = shape["routed_scaling_factor"]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the output and the routing weights [tokens, experts]."""
        flat = x.flatten(0, -2)
        weights = self.gate(flat)
        gate, up = self.experts.gate_up_proj.to(x.dtype).chunk(2, dim=1)
        inner = _swiglu(flat @ gate.flatten(0, 1).T, flat @ up.flatten(0, 1).T)
        inner = (
            inner.unflatten(-1, (weights.shape[-1], -1)) * weights[..., None].to(x.dtype)
        ).flatten(-2)
        # [experts, hidden, inner] -> [experts * inner, hidden]: one product sums over the experts.
        down = self.experts.down_proj.to(x.dtype).transpose(1, 2).flatten(0, 1)
        return ((inner @ down) * self.factor).view_as(x), weights


def _residual_add(branch: torch.Tensor, residual: torch.Tensor, index: int) -> torch.Tensor:
    return branch * (1.0 / math.sqrt(index)) + residual * math.sqrt((index - 1) / index)


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: dict[str, Any], index: int, full: bool) -> None:
        super().__init__()
        hidden, eps = shape["hidden_size"], shape["rms_norm_eps"]
        self.index = index
        self.self_attn = Attention(shape, full)
        self.mlp = DenseMLP(shape) if index < 3 else MoE(shape)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)

    def forward(
        self,
        x: torch.Tensor,
        attend: Attend,
        rope: tuple[torch.Tensor, torch.Tensor],
        scale: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        branch = self.self_attn(self.input_layernorm(x), attend, rope, scale)
        x = _residual_add(self.post_attention_layernorm(branch), x, 2 * (self.index + 1))
        out = self.mlp(self.pre_feedforward_layernorm(x))
        branch, weights = out if isinstance(out, tuple) else (out, None)
        x = _residual_add(self.post_feedforward_layernorm(branch), x, 2 * (self.index + 1) + 1)
        return x, weights


class Body(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        count = shape["num_hidden_layers"]
        self.embed_tokens = nn.Embedding(shape["vocab_size"], shape["hidden_size"])
        self.layers = nn.ModuleList(
            Layer(shape, i, full=i % 6 == 5 or i == count - 1) for i in range(count)
        )
        self.norm = RMSNorm(shape["hidden_size"], shape["rms_norm_eps"])


class TrainableBeam(nn.Module):  # type: ignore[misc]
    """beam-tiny as trained. forward(batch, full, sliding) takes the two attention functions."""

    def __init__(self, shape: dict[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.model = Body(shape)
        self.lm_head = Linear(shape["hidden_size"], shape["vocab_size"])
        self.dtype, self.cap = dtype, shape["final_logit_softcapping"]
        self.window = shape["sliding_window"]
        head_dim = shape["head_dim"]
        theta = shape["rope_parameters"]["sliding_attention"]["rope_theta"]
        powers = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        self.inverse_frequency = nn.Buffer(1.0 / theta**powers, persistent=False)

    def forward(
        self, batch: Batch, full: Attend, sliding: Attend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns final hidden states [rows, length, hidden] and the share of tokens each expert
        of each MoE layer got, [moe_layers, experts], times the number of experts over top-k."""
        angles = batch.positions[:, None, :, None].float() * self.inverse_frequency
        rope = (angles.cos(), angles.sin())
        scale = torch.exp(0.1 * torch.log1p((batch.positions.float() + 1) / 2048))[:, None, :, None]
        x = self.model.embed_tokens(batch.tokens).to(self.dtype)
        loads = []
        for layer in self.model.layers:
            x, weights = layer(x, full if layer.self_attn.full else sliding, rope, scale)
            if weights is not None:
                used = (weights > 0).float() * batch.real.flatten()[:, None]
                loads.append(used.sum(0) / used.sum() * used.shape[-1])
        return self.model.norm(x), torch.stack(loads)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Softcapped logits in fp32, [..., vocab]."""
        capped: torch.Tensor = torch.tanh(self.lm_head(hidden).float() / self.cap) * self.cap
        return capped


def masked_attention(mask: torch.Tensor) -> Attend:
    """Attention under a boolean mask [rows, 1, length, length] through SDPA: any device."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    return attend


def masks(batch: Batch, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(full, sliding) boolean masks [rows, 1, length, length] of packed rows."""
    index = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    distance = index[:, None] - index[None, :]
    same = batch.documents[:, None, :, None] == batch.documents[:, None, None, :]
    full = same & (distance >= 0)
    return full, full & (distance < window)
