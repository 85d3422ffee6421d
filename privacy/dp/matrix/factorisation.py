"""A factorisation that an experiment runs: its matrix as numbers, what it costs, and its noise, round by round.

    plan = factorisation(privacy, rounds=500)
    state = plan.init(size)
    noise, state = plan.next(independent, state, step)     # independent: float64 [size], from a CSPRNG, for every round

The noise of round t is y_t = (C⁻¹ Z)_t, found without C⁻¹: C Y = Z says y_t = z_t − Σ_{i≥1} c_i y_{t−i}. What must be
remembered are the last y, or, for buffers, Σ_i decay_j^(i−1) y_{t−i} of each.

**On a grid.** Numbers between grid points would tell what earlier rounds drew: c_1 z_1 has digits of its own, and r_2 =
x_2 + z_2 − c_1 z_1 would show them to whoever guesses x_1 = r_1 − z_1. So z is whole steps, and y_t = z_t − the whole
steps nearest to Σ c_i y_{t−i}. Who knows the rounds before and all contributions but one device's then sees a discrete
Gaussian around x_t − that, which the device moves by (C ΔX)_t and by less than one step a coordinate; so the price is
that of the sensitivity and √(rounds · size) steps (`on_grid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.matrix import blt, toeplitz
from coterie.privacy.dp.matrix.blt import Buffers
from coterie.privacy.dp.matrix.toeplitz import Column
from coterie.protocol.arrays import Vector
from coterie.protocol.mechanisms import MATRIX
from coterie.protocol.privacy import UserLevel

MOST_ROUNDS = 20_000


@dataclass(frozen=True, eq=False)
class NoiseState:
    """Noise between two rounds: of `step` rounds so far.

    past: what of it is needed again, ``[rows, size]``, as secret as the noise itself.
    """

    step: int
    past: npt.NDArray[np.float64]

    def to_tensors(self) -> dict[str, npt.NDArray[Any]]:
        """As tensors, for the coordinator's state; `from_tensors` is the inverse."""
        return {"noise.step": np.array([self.step], np.int64), "noise.held": self.past}

    @staticmethod
    def from_tensors(tensors: Mapping[str, npt.NDArray[Any]]) -> NoiseState:
        """Read what ``to_tensors`` wrote. Raises errors.InputError (``noise_state_invalid``)."""
        step, held = tensors.get("noise.step"), tensors.get("noise.held")
        if step is None or held is None or step.size != 1 or held.ndim != 2 or held.dtype != np.float64:
            raise errors.InputError("This is not a state of correlated noise.", code="noise_state_invalid")
        return NoiseState(int(step.reshape(-1)[0]), held)


@dataclass(frozen=True)
class Factorisation:
    """C of a matrix mechanism for so many rounds, and who may take part how often.

    column: the coefficients up to the last that is not 0 (``toeplitz``, ``banded``), or buffers (``blt``).
    Equal values are equal mechanisms.
    """

    rounds: int
    min_separation: int
    participations: int | None
    column: tuple[float, ...] | None
    buffers: Buffers | None

    def first_column(self) -> Column:
        """The first column of C, ``[rounds]``."""
        if self.buffers is not None:
            return self.buffers.column(self.rounds)
        given = np.array(self.column, np.float64)
        return np.concatenate([given, np.zeros(self.rounds - len(given))])

    @property
    def sensitivity(self) -> float:
        """Of C X to one device, whose every contribution has a norm of at most 1."""
        return float(np.linalg.norm(_participation(self)))

    def shares(self) -> Vector:
        """What each round adds to the cost, as a share of the whole: ``[rounds]``, non-negative, its sum is 1.

        After t rounds nothing depends on rows of C X past t, so the mechanism cost the sum of the first t shares of
        1 / multiplier². Costs of Gaussian noise are additive in 1 / multiplier², also when rounds follow on each other.
        """
        squares = _participation(self) ** 2
        return squares / squares.sum()

    def init(self, size: int) -> NoiseState:
        """Before the first round, for noise on `size` numbers."""
        rows = 0 if self.buffers is None else len(self.buffers.decay)
        return NoiseState(0, np.zeros((rows, size)))

    def on_grid(self, bound: float, size: int, step: float) -> float:
        """The sensitivity in units of the vector, of contributions of at most `bound` each to `size` numbers on a grid
        of this step.
        """
        return self.sensitivity * bound + step * math.sqrt(self.rounds * size)

    def next(self, independent: Vector, state: NoiseState, step: float) -> tuple[Vector, NoiseState]:
        """The noise of the next round, and the state after it; no argument changes.

        independent: noise of standard deviation multiplier · `on_grid`, in whole steps, fresh for this round; the noise
            is whole steps too.
        step: a power of two, the same in all rounds. A round that is abandoned is a row that nobody sees: call this for
            it too (`catch_up`), since separation counts rounds.
        Raises errors.ArgumentValueError when all rounds have been run or sizes differ.
        """
        if state.step >= self.rounds or independent.shape != state.past.shape[1:]:
            raise errors.ArgumentValueError(
                f"Correlated noise for {self.rounds} rounds of {state.past.shape[1]} numbers was asked for round "
                f"{state.step + 1} of {independent.size} numbers."
            )
        if self.buffers is not None:
            noise = independent - step * np.rint(np.array(self.buffers.scale) @ state.past / step)
            return noise, NoiseState(state.step + 1, np.array(self.buffers.decay)[:, None] * state.past + noise)
        column = np.array(self.column, np.float64)
        # held: the newest first.
        noise = independent - step * np.rint(column[1 : 1 + len(state.past)] @ state.past / step)
        held = np.concatenate([noise[None], state.past])[: len(column) - 1]
        return noise, NoiseState(state.step + 1, held)

    def catch_up(
        self, round: int, state: NoiseState, independent: Callable[[int], Vector], step: float
    ) -> tuple[Vector, NoiseState]:
        """The noise of this round (counted from 1), after running the rounds in between that were abandoned.

        independent: round → its fresh noise; the same answer for a retry of the same round.
        Raises errors.ArgumentValueError for a round that the state has passed, since noise is never used twice.
        """
        if round <= state.step:
            raise errors.ArgumentValueError(
                f"Noise of round {round} was asked for after that of round {state.step}; noise is never used twice."
            )
        while state.step < round - 1:
            _, state = self.next(independent(state.step + 1), state, step)
        return self.next(independent(round), state, step)


def factorisation(privacy: UserLevel, rounds: int) -> Factorisation:
    """What `privacy` runs over so many rounds. Cached; under a second for thousands of rounds.

    Raises errors.ExperimentError (``privacy_invalid``) for a mechanism without a matrix, or too many rounds.
    """
    if privacy.mechanism not in MATRIX or not 1 <= rounds <= MOST_ROUNDS:
        raise errors.ExperimentError(
            f"UserLevel: mechanism {privacy.mechanism!r} over {rounds} rounds has no matrix; correlated noise is for "
            f"{', '.join(MATRIX)} and at most {MOST_ROUNDS} rounds.",
            code="privacy_invalid",
        )
    bands = privacy.bands or privacy.min_separation
    return _make(privacy.mechanism, rounds, privacy.min_separation, privacy.max_participations, bands, privacy.buffers)


@lru_cache(maxsize=64)
def _make(
    mechanism: str, rounds: int, min_separation: int, participations: int | None, bands: int, buffers: int
) -> Factorisation:
    column: Column | None = None
    fitted: Buffers | None = None
    if mechanism == "toeplitz" or rounds <= 2:
        column = toeplitz.square_root(rounds)
    elif mechanism == "banded":
        column = toeplitz.square_root(rounds)[:bands]
    else:
        fitted = blt.fitted(rounds, buffers, min_separation, participations)
    held = None if column is None else tuple(column.tolist())
    return Factorisation(rounds, min_separation, participations, held, fitted)


@lru_cache(maxsize=64)
def _participation(plan: Factorisation) -> Vector:
    return toeplitz.participation(
        plan.first_column(), min_separation=plan.min_separation, participations=plan.participations
    )
