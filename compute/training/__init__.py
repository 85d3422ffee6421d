"""Training helpers: gradients that accumulate, steps that run many at a time, and a small trainer.

The public names are loaded on first use: few need ONNX or its runtime.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.training.accumulation import accumulate as accumulate
    from coterie.compute.training.cost import measure as measure
    from coterie.compute.training.sink import sunk as sunk
    from coterie.compute.training.sink import sunk_executable as sunk_executable
    from coterie.compute.training.trainer import Fit as Fit
    from coterie.compute.training.trainer import Trainer as Trainer

_HOMES = {
    "Fit": "trainer",
    "Trainer": "trainer",
    "accumulate": "accumulation",
    "measure": "cost",
    "sunk": "sink",
    "sunk_executable": "sink",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
