"""Vocabulary-parallel token embedding.

    embedding(token_ids [n] int64, table [rows, H], first_row) -> fp32 [n, H]

`table` holds rows first_row.. of the vocabulary; tokens outside it are exact zeros, so that a sum
over ranks is exact. No kernel yet beyond torch's own gather.
"""
