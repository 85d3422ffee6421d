"""Example-level privacy inside the step: per-example clipping, and noise that comes from the host."""
