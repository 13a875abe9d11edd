"""What fits a GPU and what it costs, from arithmetic alone: no torch, no GPU, no weights."""
