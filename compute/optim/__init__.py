"""Optimizers as pairs of pure functions, and schedules as functions of an integer."""

from typing import TYPE_CHECKING

from coterie.compute.absent import refuser as _refuser
from coterie.compute.optim.adagrad import adagrad
from coterie.compute.optim.adam import adam, adamw
from coterie.compute.optim.clipped import clipped
from coterie.compute.optim.elsewhere import OPTIMIZERS as _OPTIMIZERS
from coterie.compute.optim.lbfgs import Minimum, lbfgs, minimise
from coterie.compute.optim.nadam import nadam
from coterie.compute.optim.optimizer import Arrays, Optimizer
from coterie.compute.optim.packing import packed
from coterie.compute.optim.rmsprop import rmsprop
from coterie.compute.optim.scheduled import scheduled
from coterie.compute.optim.schedules import Schedule, constant, cosine, step_decay, warmup
from coterie.compute.optim.sgd import sgd
from coterie.compute.optim.shampoo import shampoo
from coterie.compute.optim.subspace import (
    DimensionReduction,
    ReducedState,
    Subspace,
    dimension_reduction,
    principal_subspace,
)
from coterie.compute.optim.yogi import yogi

__all__ = [
    "DimensionReduction",
    "ReducedState",
    "Subspace",
    "dimension_reduction",
    "principal_subspace",
    "Arrays",
    "Minimum",
    "Optimizer",
    "Schedule",
    "adagrad",
    "adam",
    "adamw",
    "clipped",
    "constant",
    "cosine",
    "lbfgs",
    "minimise",
    "nadam",
    "packed",
    "rmsprop",
    "scheduled",
    "sgd",
    "shampoo",
    "step_decay",
    "warmup",
    "yogi",
]

if not TYPE_CHECKING:  # for type checkers the names above are all
    __getattr__ = _refuser(__name__, _OPTIMIZERS)
