"""Registration of `embedding`."""

import torch
from beam_trt_plugins.registry import define


def _cpu(token_ids: torch.Tensor, table: torch.Tensor, first_row: int) -> torch.Tensor:
    local = token_ids - first_row
    outside = (local < 0) | (local >= table.shape[0])
    rows = table.index_select(0, local.masked_fill(outside, 0)).float()
    return rows.masked_fill_(outside[:, None], 0.0)


def _fake(token_ids: torch.Tensor, table: torch.Tensor, first_row: int) -> torch.Tensor:
    return table.new_empty((token_ids.shape[0], table.shape[1]), dtype=torch.float32)


OPS = (define("embedding(Tensor token_ids, Tensor table, int first_row) -> Tensor", _cpu, _fake),)
