"""Optimizers as pairs of pure functions, and schedules as functions of an integer.

Those of second order are loaded on first use: they live in :mod:`coterie.compute.science`.
"""

from typing import TYPE_CHECKING, Any

from coterie.compute.absent import refuser as _refuser
from coterie.compute.lazy import loader as _loader
from coterie.compute.optim.adagrad import adagrad
from coterie.compute.optim.adam import adam, adamw
from coterie.compute.optim.clipped import clipped
from coterie.compute.optim.elsewhere import OPTIMIZERS as _OPTIMIZERS
from coterie.compute.optim.nadam import nadam
from coterie.compute.optim.optimizer import Arrays, Optimizer
from coterie.compute.optim.packing import packed
from coterie.compute.optim.rmsprop import rmsprop
from coterie.compute.optim.scheduled import scheduled
from coterie.compute.optim.schedules import Schedule, constant, cosine, step_decay, warmup
from coterie.compute.optim.sgd import sgd
from coterie.compute.optim.shampoo import shampoo
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

_HOMES = {
    "DimensionReduction": "coterie.compute.science.subspace",
    "Minimum": "coterie.compute.science.lbfgs",
    "ReducedState": "coterie.compute.science.subspace",
    "Subspace": "coterie.compute.science.subspace",
    "dimension_reduction": "coterie.compute.science.subspace",
    "lbfgs": "coterie.compute.science.lbfgs",
    "minimise": "coterie.compute.science.lbfgs",
    "principal_subspace": "coterie.compute.science.subspace",
}

if TYPE_CHECKING:  # for type checkers the names above are all
    from coterie.compute.science.lbfgs import Minimum as Minimum
    from coterie.compute.science.lbfgs import lbfgs as lbfgs
    from coterie.compute.science.lbfgs import minimise as minimise
    from coterie.compute.science.subspace import DimensionReduction as DimensionReduction
    from coterie.compute.science.subspace import ReducedState as ReducedState
    from coterie.compute.science.subspace import Subspace as Subspace
    from coterie.compute.science.subspace import dimension_reduction as dimension_reduction
    from coterie.compute.science.subspace import principal_subspace as principal_subspace
else:
    _load, _refuse = _loader(__name__, _HOMES), _refuser(__name__, _OPTIMIZERS)

    def __getattr__(name: str) -> Any:
        return _load(name) if name in _HOMES else _refuse(name)
