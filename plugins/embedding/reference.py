"""The truth of `embedding`."""

import torch


def embedding(token_ids: torch.Tensor, table: torch.Tensor, first_row: int) -> torch.Tensor:
    """Row `token - first_row` of `table` [rows, H] for tokens it holds, else zeros: fp32 [n, H]."""
    rows = [
        table[int(token) - first_row].float()
        if 0 <= int(token) - first_row < table.shape[0]
        else torch.zeros(table.shape[1])
        for token in token_ids
    ]
    return torch.stack(rows)
