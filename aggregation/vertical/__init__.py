"""Vertical learning: organisations that have different columns about the same people train one model."""
