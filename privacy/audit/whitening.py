"""How one device's mark is looked for in the noise of many rounds.

The noise of rounds is made independent again: by C where a matrix mechanism has correlated it, by the round's own
multiplier otherwise. After that, the best that can be done against a device whose rounds are known is to add up its
rounds by the strength with which it is in each (a matched filter). Both are public.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.matrix.factorisation import factorisation
from coterie.privacy.dp.rounds import multiplier, round_noise
from coterie.protocol.arrays import Matrix
from coterie.protocol.mechanisms import MATRIX
from coterie.protocol.privacy import UserLevel


@dataclass(frozen=True)
class CanaryScores:
    """Of each canary, one number.

    values: what was found along its direction, in noise of one deviation for all.
    strengths: how far its mark must stand there if it is in the run, as a multiple of the deviation that the noise is
        asked to have.
    """

    values: npt.NDArray[np.float64]
    strengths: npt.NDArray[np.float64]


def whitening(privacy: UserLevel, rounds: int, *, cohort: int) -> Matrix:
    """What makes the noise of so many rounds independent, and as large as the clip: ``[rounds, rounds]``, lower
    triangular.
    """
    if privacy.mechanism in MATRIX:
        plan = factorisation(privacy, rounds)
        column = plan.first_column()
        lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
        rows = np.where(lags >= 0, column[np.maximum(lags, 0)], 0.0)
        return rows / (plan.sensitivity * multiplier(privacy, rounds))
    noise = [round_noise(privacy, round, rounds, cohort=cohort).updates for round in range(1, rounds + 1)]
    return np.diag(1 / np.array(noise))


def even_scales(scores: Matrix, included: npt.NDArray[np.bool_], white: Matrix) -> Matrix:
    """Scores of rounds whose clip nobody was told, as if it had been the same in all: each round's over the spread that
    it has among canaries that are not in the run, times the spread that the round's noise is asked to have.

    scores: ``[canaries, rounds]``.
    white: a diagonal `whitening`.
    """
    spread = np.sqrt(np.mean(scores[~included] ** 2, axis=0))
    least = 1e-12 * max(float(np.abs(scores).max()), 1e-300)
    return scores / (np.maximum(spread, least) * np.diag(white))


def matched(scores: Matrix, there: npt.NDArray[np.bool_], white: Matrix) -> CanaryScores:
    """Each canary's rounds, added up.

    scores, there: ``[canaries, rounds]``, what each round shows along each direction, and which rounds each canary was
        chosen for. A canary that was chosen for none has a strength of 0.
    """
    marks = there.astype(np.float64) @ white.T
    strengths = np.linalg.norm(marks, axis=1)
    values = np.einsum("ct,ct->c", scores @ white.T, marks) / np.where(strengths > 0, strengths, 1.0)
    return CanaryScores(values, strengths)


def expected_strengths(white: Matrix, *, apart: int, most: int) -> npt.NDArray[np.float64]:
    """The strengths of devices that take part in every round that is `apart` from their last, `most` times at the most,
    one for each round in which they can begin.
    """
    rounds = len(white)
    patterns = np.zeros((min(apart, rounds), rounds))
    for first, pattern in enumerate(patterns):
        pattern[first::apart][:most] = 1.0
    return np.linalg.norm(patterns @ white.T, axis=1)
