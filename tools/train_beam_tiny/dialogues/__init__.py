"""Generates dialogues in Beam's chat format whose right results are computed, not guessed."""
