"""What reducers reduce."""

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
"""All elements of an update, one after the other, ``[length]``."""
