"""Smaller models by training: pruning masks, and distillation from a teacher.

Both are modules around a module, so a `Trainer` and an `Experiment` take them like any other model.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.compress.described import compression as compression
    from coterie.compute.compress.distillation import Distilled as Distilled
    from coterie.compute.compress.distillation import distilled as distilled
    from coterie.compute.compress.masks import by_magnitude as by_magnitude
    from coterie.compute.compress.masks import by_outputs as by_outputs
    from coterie.compute.compress.masks import cubic_sparsity as cubic_sparsity
    from coterie.compute.compress.masks import masked as masked
    from coterie.compute.compress.masks import n_of_m as n_of_m
    from coterie.compute.compress.masks import sparsity as sparsity
    from coterie.compute.compress.pruning import Pruned as Pruned
    from coterie.compute.compress.pruning import pruned as pruned

_HOMES = {
    "Distilled": "distillation",
    "Pruned": "pruning",
    "by_magnitude": "masks",
    "by_outputs": "masks",
    "compression": "described",
    "cubic_sparsity": "masks",
    "distilled": "distillation",
    "masked": "masks",
    "n_of_m": "masks",
    "pruned": "pruning",
    "sparsity": "masks",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
