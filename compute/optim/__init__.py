"""Optimizers as pairs of pure functions, and schedules as functions of an integer."""

from coterie.compute.optim.adam import adam, adamw
from coterie.compute.optim.optimizer import Arrays, Optimizer
from coterie.compute.optim.packing import packed
from coterie.compute.optim.schedules import Schedule, constant, cosine, step_decay, warmup
from coterie.compute.optim.sgd import sgd

__all__ = [
    "Arrays",
    "Optimizer",
    "Schedule",
    "adam",
    "adamw",
    "constant",
    "cosine",
    "packed",
    "sgd",
    "step_decay",
    "warmup",
]
