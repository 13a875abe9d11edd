"""The Beam forward on one rank, over the ops of `beam_trt_plugins`; the same code on every device.

Knows tensors and ranks; nothing about requests, sampling or how the other ranks are reached. No
value of a tensor decides what is called, so that a step can be captured in a CUDA graph.

Arithmetic follows transformers' BeamForCausalLM: where an op's result is the model dtype, it
rounds where that model rounds. Sums over ranks are fp32 and round once, afterwards.
"""

from dataclasses import dataclass

import torch

from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.tensors import layer_prefix
from beam_trt.model.batch import KvIndex, StepBatch
from beam_trt.model.communicator import Communicator
from beam_trt.model.kv import KvPools
from beam_trt.model.linear import Experts, Linear, Weights
from beam_trt.model.weights import check_weights

_ops = torch.ops.beam_trt


@dataclass(frozen=True, slots=True)
class _Attention:
    qkvg: Linear
    o: Linear
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    gate_bias: torch.Tensor
    is_full: bool


@dataclass(frozen=True, slots=True)
class _DenseMlp:
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _Moe:
    router: torch.Tensor
    router_bias: torch.Tensor
    experts: Experts


@dataclass(frozen=True, slots=True)
class _Layer:
    attention: _Attention
    mlp: _DenseMlp | _Moe
    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    pre_feedforward_norm: torch.Tensor
    post_feedforward_norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class _StepTerms:
    """What all layers of a step share: fp32 [num_tokens, head_dim] and [num_tokens]."""

    cos_sin: torch.Tensor
    query_scale: torch.Tensor


class BeamModel:
    """One rank's model. `weights` are engine tensors (`config.tensors`), complete and checked here:
    EngineError where one is missing or has another dtype or shape. Weights are constant: a CPU
    keeps an fp32 copy of each from its first use on."""

    def __init__(
        self,
        config: ModelConfig,
        quant: QuantConfig,
        mapping: Mapping,
        weights: Weights,
        communicator: Communicator,
    ) -> None:
        assert communicator.size == mapping.tp_size, (communicator.size, mapping)
        assert communicator.rank == mapping.rank, (communicator.rank, mapping)
        check_weights(weights, config, quant, mapping, f"rank {mapping.rank}")
        self.config = config
        self.quant = quant
        self.mapping = mapping
        self.communicator = communicator
        self.dtype = torch.float32 if quant.precision is Precision.FP32 else torch.bfloat16
        self._embed_tokens = weights["embed_tokens"]
        self._norm = weights["norm"]
        self._lm_head = weights["lm_head"]
        self._layers = [self._layer(weights, i) for i in range(config.num_hidden_layers)]
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self._inv_freq = (1.0 / config.rope_theta**exponents).to(self._embed_tokens.device)

    def _layer(self, weights: Weights, layer_idx: int) -> _Layer:
        at = layer_prefix(layer_idx)
        other = self.quant.linear_precision(is_expert=False)
        attention = _Attention(
            qkvg=Linear.of(weights, f"{at}attention.qkvg", other, self.dtype),
            o=Linear.of(weights, f"{at}attention.o", other, torch.float32),
            q_norm=weights[f"{at}attention.q_norm"],
            k_norm=weights[f"{at}attention.k_norm"],
            gate_bias=weights[f"{at}attention.gate_bias"],
            is_full=self.config.is_full(layer_idx),
        )
        mlp: _DenseMlp | _Moe
        if self.config.is_moe(layer_idx):
            mlp = _Moe(
                router=weights[f"{at}moe.router"],
                router_bias=weights[f"{at}moe.router_bias"],
                experts=Experts.of(
                    weights,
                    f"{at}moe",
                    self.quant.linear_precision(is_expert=True),
                    self.mapping.first_expert(self.config),
                ),
            )
        else:
            mlp = _DenseMlp(
                gate_up=Linear.of(weights, f"{at}mlp.gate_up", other, self.dtype),
                down=Linear.of(weights, f"{at}mlp.down", other, torch.float32),
            )
        return _Layer(
            attention=attention,
            mlp=mlp,
            input_norm=weights[f"{at}input_norm"],
            post_attention_norm=weights[f"{at}post_attention_norm"],
            pre_feedforward_norm=weights[f"{at}pre_feedforward_norm"],
            post_feedforward_norm=weights[f"{at}post_feedforward_norm"],
        )

    def forward(self, batch: StepBatch, kv: KvPools) -> torch.Tensor:
        """Run one step: writes the step's keys and values into `kv`, returns fp32
        [num_logits, vocab_size], softcapped, the whole vocabulary on every rank."""
        with torch.inference_mode():
            return self._forward(batch, kv)

    def _forward(self, batch: StepBatch, kv: KvPools) -> torch.Tensor:
        config = self.config
        terms = _StepTerms(*_ops.position_terms(batch.positions, self._inv_freq))
        # A token's row is on one rank and zero on the others: the fp32 sum is exact.
        first_row = self.mapping.rank * self._embed_tokens.shape[0]
        embedded = _ops.embedding(batch.token_ids, self._embed_tokens, first_row)
        residual = self.communicator.all_reduce(embedded).to(self.dtype)
        normed = _ops.rms_norm(residual, self._layers[0].input_norm, config.rms_norm_eps)
        for layer_idx, layer in enumerate(self._layers):
            is_last = layer_idx + 1 == config.num_hidden_layers
            next_norm = self._norm if is_last else self._layers[layer_idx + 1].input_norm
            add_idx = 2 * (layer_idx + 1)
            branch = self._attention(layer.attention, normed, batch, kv.layers[layer_idx], terms)
            residual, normed = _ops.norm_boundary(
                self.communicator.all_reduce(branch),
                residual,
                layer.post_attention_norm,
                layer.pre_feedforward_norm,
                config.rms_norm_eps,
                add_idx,
                1.0,
            )
            branch, branch_scale = self._mlp(layer.mlp, normed)
            residual, normed = _ops.norm_boundary(
                self.communicator.all_reduce(branch),
                residual,
                layer.post_feedforward_norm,
                next_norm,
                config.rms_norm_eps,
                add_idx + 1,
                branch_scale,
            )
        rows = normed.index_select(0, batch.logit_rows)
        logits = _ops.logits(rows, self._lm_head, config.final_logit_softcapping)
        return self.communicator.all_gather_last(logits)

    def _attention(
        self,
        attention: _Attention,
        x: torch.Tensor,
        batch: StepBatch,
        kv: torch.Tensor,
        terms: _StepTerms,
    ) -> torch.Tensor:
        """[num_tokens, H] -> this rank's fp32 partial sum of o_proj's output."""
        config = self.config
        index: KvIndex = batch.full if attention.is_full else batch.sliding
        num_heads = self.mapping.num_local_heads(config)
        qkvg = attention.qkvg(x)
        q = _ops.qk_norm_rope_write(
            qkvg,
            attention.q_norm,
            attention.k_norm,
            None if attention.is_full else terms.cos_sin,
            terms.query_scale if attention.is_full else None,
            kv,
            index.slots,
            num_heads,
            self.mapping.num_local_kv_heads(config),
            config.rms_norm_eps,
        )
        attended = _ops.hybrid_attention(
            q,
            qkvg[:, -num_heads * config.head_dim :],
            attention.gate_bias,
            kv,
            index.block_table,
            batch.query_starts,
            batch.context_lens,
            0 if attention.is_full else config.sliding_window,
            config.head_dim**-0.5,
        )
        return attention.o(attended)

    def _mlp(self, mlp: _DenseMlp | _Moe, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        """[num_tokens, H] -> this rank's fp32 partial sum, and what multiplies the whole sum."""
        if isinstance(mlp, _DenseMlp):
            return mlp.down(_ops.swiglu(mlp.gate_up(x))), 1.0
        expert_idx, expert_weights = _ops.router(
            x,
            mlp.router,
            mlp.router_bias,
            self.config.n_group,
            self.config.topk_group,
            self.config.num_experts_per_tok,
        )
        return mlp.experts(x, expert_idx, expert_weights), self.config.routed_scaling_factor
