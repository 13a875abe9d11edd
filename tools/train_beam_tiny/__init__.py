"""Trains beam-tiny: corpus, dialogues, tokenizer, model, evaluation and export of the checkpoint
that ships in beam_trt/assets/beam_tiny."""
