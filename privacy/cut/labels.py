"""Labels of a training by randomised response (`coterie.privacy.dp.randomised_response`): each is the true one with
probability e**ε / (n - 1 + e**ε), and each of the n - 1 others with 1 / (n - 1 + e**ε). Of two classes a label is
flipped with probability 1 / (1 + e**ε).

Everything that is computed from them afterwards, gradients and weights of all epochs, costs the same ε of a row's
label, since the labels are drawn once. Drawn anew, for other rows or another training, they cost ε again.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.randomised_response import odds, respond_all
from coterie.protocol.cut import RandomisedLabels


def protect(labels: npt.NDArray[Any], classes: int, noise: RandomisedLabels, key: bytes) -> npt.NDArray[Any]:
    """Labels ``[N]`` from 0 to classes - 1, as a training takes them; in their dtype.

    key: 32 bytes that nobody else knows; the same key gives the same labels.
    Raises errors.ArgumentValueError for a label that is no class.
    """
    answers = respond_all(labels.tolist(), classes, noise.epsilon, NoiseSource(key))
    return np.asarray(answers, labels.dtype)


def kept(noise: RandomisedLabels, classes: int) -> float:
    """The probability that a label is the true one."""
    ratio = float(odds(noise.epsilon))
    return ratio / (ratio + classes - 1)
