"""Logits of this rank's part of the vocabulary.

    logits(x [n, H], weight [V, H], softcap: float | None) -> fp32 [n, V]

The head's product rounds to the model dtype; softcap * tanh(x / softcap) is fp32 and stays fp32,
since a bf16 tanh loses the order of large logits.
"""
