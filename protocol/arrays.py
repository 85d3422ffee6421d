"""Types of NumPy arrays that several modules speak of."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
"""An array of any element type and shape."""

Vector = npt.NDArray[np.float64]
"""Numbers one after the other, ``[length]``, such as all elements of an update."""

Matrix = npt.NDArray[np.float64]
"""Numbers in rows and columns."""

FloatMatrix = npt.NDArray[np.float32]
"""Numbers in rows and columns, in the precision of the model."""

ArraysByName = Mapping[str, npt.NDArray[Any]]
"""Arrays by name: a model's tensors, the columns of a table, the sections of an update."""

ArrayDict = dict[str, npt.NDArray[Any]]
"""Arrays by name, which whoever is given them may change."""

FloatArrays = Mapping[str, npt.NDArray[np.float32]]
"""Arrays by name, in the precision of the model."""
