"""Measures what a running server does, as a client sees it."""
