"""Registration of `logits`."""

import torch
from beam_trt_plugins.projection.op import plain_weight
from beam_trt_plugins.registry import define
from beam_trt_plugins.row_tiles import matmul


def _cpu(x: torch.Tensor, weight: torch.Tensor, softcap: float | None) -> torch.Tensor:
    raw = matmul(x, plain_weight(weight), weight.shape[0]).to(x.dtype).float()
    return raw if softcap is None else raw.div_(softcap).tanh_().mul_(softcap)


def _fake(x: torch.Tensor, weight: torch.Tensor, softcap: float | None) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32)


OPS = (define("logits(Tensor x, Tensor weight, float? softcap) -> Tensor", _cpu, _fake),)
