"""First weights as a researcher gives them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors


def initial_tensors(
    weights: Mapping[str, npt.NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, npt.NDArray[np.float32]]:
    """First weights, checked: exactly these names and shapes, float32 and finite.

    Raises errors.ExperimentError (``initial_mismatch``) naming the tensor.
    """
    for wrong, what in ((set(shapes) - set(weights), "lack"), (set(weights) - set(shapes), "name the unknown tensor")):
        if wrong:
            raise errors.ExperimentError(f"The initial weights {what} {min(wrong)!r}.", code="initial_mismatch")
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        array = np.asarray(weights[name])
        if array.shape != shape or array.dtype.kind != "f":
            raise errors.ExperimentError(
                f"Initial tensor {name!r} must be floats {list(shape)}; got {array.dtype} {list(array.shape)}.",
                code="initial_mismatch",
            )
        with np.errstate(over="ignore"):
            # Adding 0 turns −0 into +0, which keeps the padding laws exact.
            tensors[name] = np.add(
                np.array(array, np.float32, order="C"), np.float32(0), out=np.empty(shape, np.float32)
            )
        if not np.isfinite(tensors[name]).all():
            raise errors.ExperimentError(
                f"Initial tensor {name!r} must be finite in float32; it holds {array[~np.isfinite(tensors[name])][0]}.",
                code="initial_mismatch",
            )
    return tensors
