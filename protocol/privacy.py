"""What differential privacy an experiment asks for, as one frozen value: `UserLevel`, `ExampleLevel` or `LocalLevel`.

    UserLevel(clip=1.0, delta=1e-5, epsilon=8.0)          a whole device is hidden; noise on the sum of a round
    ExampleLevel(clip=1.0, delta=1e-5, epsilon=8.0)       one row of a device is hidden; noise in every training step
    LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-5)   a device's update is hidden from everyone at once

Each is checked whole when it is made, and errors.InputError (``message_invalid``) names the field and says what it may
be. What a value costs is said by `coterie.privacy.dp.accounting` and `rounds`, what it means by `statement`.
"""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from coterie.protocol.by_hand import ByHand
from coterie.protocol.mechanisms import MATRIX, CentralMechanism, LocalMechanism

MOST_EPSILON = 1e4
LARGEST_DELTA = 0.01
MOST_ROUNDS = 1_000_000
MOST_BUFFERS = 10
MOST_MULTIPLIER = 1e6
MOST_LEVELS = 64
"""Different factors of a schedule of `ExampleLevel`."""
WIDEST = 1000.0
"""How many times the smallest its largest factor may be: all rounds draw noise on one grid, which must stay fine."""

Clip = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
Delta = Annotated[float, Field(strict=True, gt=0, le=LARGEST_DELTA, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(strict=True, gt=0, le=MOST_EPSILON, allow_inf_nan=False)]
Multiplier = Annotated[float, Field(strict=True, gt=0, le=MOST_MULTIPLIER, allow_inf_nan=False)]
Times = Annotated[int, Field(strict=True, ge=1, le=MOST_ROUNDS)]
RowCount = Annotated[int, Field(strict=True, ge=1, le=1 << 31)]
Factor = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]


class AdaptiveClip(ByHand):
    """Clip to a quantile of the updates' norms, found as rounds go by (Andrew et al., NeurIPS 2021).

    quantile: the share of updates that should not need clipping, in (0, 1).
    rate: η of C ← C · exp(−η (b − quantile)).
    bits_noise: standard deviation of the noise on the sum of the clip bits; None for the paper's cohort / 20. The noise
        of the updates grows so that bits and updates together cost what the updates alone would have.
    """

    quantile: Annotated[float, Field(strict=True, ge=1e-6, le=1 - 1e-6, allow_inf_nan=False)] = 0.5
    rate: Annotated[float, Field(strict=True, gt=0, le=10, allow_inf_nan=False)] = 0.2
    bits_noise: Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)] | None = None


class UserLevel(ByHand):
    """Nobody can tell from what is released whether one device took part, with all of its rows and rounds.

    clip: the L2 norm to which every update is shortened (the first one, if adaptive).
    delta: of (ε, δ), below 1 / (number of devices).
    epsilon: of all rounds together; or noise_multiplier: give exactly one. The multiplier is the standard deviation of
        the noise on a round's sum over `clip`; for a matrix mechanism, that of its uncorrelated noise over `clip` times
        the sensitivity, so that all rounds together cost one Gaussian of this multiplier.
    mechanism: how a round's sum is noised.
    adaptive: move `clip` by noisy quantiles; not with correlated noise.
    min_separation: a device that takes part in round i takes part again in i + min_separation at the earliest.
    max_participations: how often a device takes part at most; None for as often as the separation allows.
    bands: of ``banded``, at most min_separation; None for min_separation.
    buffers: of ``blt``.
    schedule: a factor for the noise of each round (see `schedules`), only for ``gaussian``; None for the same in all.
    """

    level: Literal["user"] = Field(default="user", repr=False)
    clip: Clip
    delta: Delta
    epsilon: Epsilon | None = None
    noise_multiplier: Multiplier | None = None
    mechanism: CentralMechanism = "gaussian"
    adaptive: AdaptiveClip | None = None
    min_separation: Times = 1
    max_participations: Times | None = None
    bands: Times | None = None
    buffers: Annotated[int, Field(strict=True, ge=1, le=MOST_BUFFERS)] = 4
    schedule: Annotated[tuple[Factor, ...], Field(min_length=1, max_length=MOST_ROUNDS)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _require_one_of_two(self.epsilon, self.noise_multiplier)
        for wrong, message in self._conflicts():
            if wrong:
                raise ValueError(message)
        return self

    def _conflicts(self) -> tuple[tuple[bool, str], ...]:
        """Fields that do not go together."""
        return (
            (
                self.mechanism in MATRIX and self.adaptive is not None,
                "adaptive clipping changes the sensitivity between rounds whose noise is correlated; "
                'choose mechanism="gaussian" or leave adaptive out',
            ),
            (
                self.mechanism in MATRIX and self.min_separation == 1 and self.max_participations is None,
                f'mechanism="{self.mechanism}" gains nothing where a device may take part in every round; give '
                "min_separation (say 20) or max_participations",
            ),
            (
                self.schedule is not None and self.mechanism != "gaussian",
                'a schedule of noise is for mechanism="gaussian"; leave schedule out',
            ),
            (
                self.bands is not None and self.mechanism != "banded",
                'bands are for mechanism="banded"; leave bands out',
            ),
            (
                self.bands is not None and self.bands > self.min_separation,
                f"bands {self.bands} exceed min_separation {self.min_separation}, so that one device's rounds would "
                "add up; raise min_separation or lower bands",
            ),
            (
                self.mechanism == "banded" and self.min_separation == 1,
                'mechanism="banded" needs rounds between two participations; give min_separation (say 20)',
            ),
        )


class ExampleLevel(ByHand):
    """Nobody can tell from a device's updates whether one row was among its data: DP-SGD in the plan.

    clip: the L2 norm to which every example's gradient is shortened. delta, epsilon or noise_multiplier: as in
        `UserLevel`, over all steps of all rounds of one device.
    rows: how many rows a device is taken to have, as a public number, which an experiment must give: each row is drawn
        into a batch with probability batch_size / rows; a device with fewer has smaller batches, one with more draws
        each row less often.
    max_batch: the most rows that one batch may hold (a larger one counts as empty, and how likely that is, is charged
        to δ); None for the least that leaves all but a ten-thousandth of δ.
    schedule: a factor for the noise of each round (see `schedules`), of at most 64 different ones within a
        thousandfold of each other; None for the same in all.
    """

    level: Literal["example"] = Field(default="example", repr=False)
    clip: Clip
    delta: Delta
    epsilon: Epsilon | None = None
    noise_multiplier: Multiplier | None = None
    rows: RowCount | None = None
    max_batch: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] | None = None
    schedule: Annotated[tuple[Factor, ...], Field(min_length=1, max_length=MOST_ROUNDS)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _require_one_of_two(self.epsilon, self.noise_multiplier)
        if self.schedule is not None:
            wrong = wrong_schedule(self.schedule)
            if wrong is not None:
                raise ValueError(f"a schedule of noise {wrong}")
        return self


class LocalLevel(ByHand):
    """Nobody, the coordinator included, can tell from one upload what the device's update was: noise is added on the
    device, before anything leaves it. epsilon and delta are those of ONE upload.

    mechanism: ``gaussian`` (calibrated exactly: Balle and Wang, 2018), ``randomised_response`` (a sign per coordinate)
        or ``sign_ds`` (a few signed coordinates); the last two have delta 0.
    clip: the L2 norm before the noise (``gaussian``), or the size of the step that a sign stands for.
    top: of ``sign_ds``, the share of coordinates that count as the largest.
    outputs: how many coordinates ``sign_ds`` and ``randomised_response`` send; None for as many as the mechanism finds
        best.
    """

    level: Literal["local"] = Field(default="local", repr=False)
    mechanism: LocalMechanism
    epsilon: Epsilon
    delta: Annotated[float, Field(strict=True, ge=0, le=LARGEST_DELTA, allow_inf_nan=False)] = 0.0
    clip: Clip = 1.0
    top: Annotated[float, Field(strict=True, gt=0, le=0.5, allow_inf_nan=False)] = 0.01
    outputs: RowCount | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.mechanism == "gaussian") != (self.delta > 0):
            wanted = "a delta above 0, for example 1e-5" if self.mechanism == "gaussian" else "delta=0.0; it is pure"
            raise ValueError(f'mechanism="{self.mechanism}" needs {wanted}')
        return self


Privacy: TypeAlias = UserLevel | ExampleLevel | LocalLevel
"""What an experiment may ask for."""
WirePrivacy: TypeAlias = Annotated[Privacy, Field(discriminator="level")]
"""The same in a message, told apart by ``level``."""


def wrong_schedule(factors: tuple[float, ...]) -> str | None:
    """What is wrong with the factors of a schedule of `ExampleLevel`; None where nothing is."""
    if max(factors) > WIDEST * min(factors):
        return f"goes from {min(factors):g} to {max(factors):g}; keep factors within {WIDEST:g} times each other"
    levels = len(set(factors))
    if levels > MOST_LEVELS:
        return (
            f"has {levels} different factors, of which each is a mechanism to be priced; use at most {MOST_LEVELS}, "
            "say by step_decay with a larger every"
        )
    return None


def _require_one_of_two(epsilon: float | None, noise_multiplier: float | None) -> None:
    if (epsilon is None) == (noise_multiplier is None):
        given = "neither" if epsilon is None else "both"
        raise ValueError(f"give exactly one of epsilon and noise_multiplier, not {given}")
