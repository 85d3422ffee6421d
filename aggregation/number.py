"""What counts as a number where a person writes one, since a type checker is not always there to say it."""

import numpy as np


def is_number(value: object) -> bool:
    """Whether it is a real number, also one of NumPy's, and no truth value."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
