"""Training helpers: steps that accumulate, scale their loss or run many at a time, and a small trainer."""

from coterie.compute.training.accumulate import accumulate

__all__ = ["accumulate"]
