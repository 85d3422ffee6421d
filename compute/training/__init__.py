"""Training helpers: steps that accumulate, scale their loss or run many at a time, and a small trainer.

The public names are loaded on first use: a step needs neither ONNX nor its runtime.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.training.accumulation import accumulate as accumulate
    from coterie.compute.training.cost import measure as measure
    from coterie.compute.training.precision import Precision as Precision
    from coterie.compute.training.precision import amp as amp
    from coterie.compute.training.sink import sunk as sunk
    from coterie.compute.training.sink import sunk_executable as sunk_executable
    from coterie.compute.training.step import TrainStep as TrainStep
    from coterie.compute.training.trainer import Fit as Fit
    from coterie.compute.training.trainer import Trainer as Trainer

_HOMES = {
    "Fit": "trainer",
    "Precision": "precision",
    "TrainStep": "step",
    "Trainer": "trainer",
    "accumulate": "accumulation",
    "amp": "precision",
    "measure": "cost",
    "sunk": "sink",
    "sunk_executable": "sink",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
