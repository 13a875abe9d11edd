"""Frozen configuration objects; importing them needs no torch."""
