"""What a run's differential privacy promises, in words that can be checked: unit, adversary, assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from coterie.privacy.dp.accounting import PrivacyCost, total_cost
from coterie.privacy.dp.noise.distributions import DISTRIBUTIONS
from coterie.privacy.dp.participation import most_participations
from coterie.privacy.dp.rounds import Draws, RoundCost, factors_of, multiplier, whole_cost
from coterie.protocol.mechanisms import DISTRIBUTED, MATRIX
from coterie.protocol.privacy import ExampleLevel, LocalLevel, Privacy, UserLevel
from coterie.protocol.secagg import SecureMode

Trust: TypeAlias = Literal["device", "cohort", "coordinator"]
"""Who must behave for the promise to hold: the device alone; enough devices of a cohort; or the coordinator."""


@dataclass(frozen=True)
class Statement:
    """Of all rounds of one experiment.

    unit: what is hidden.
    trusts: see `Trust`.
    adversary: who learns no more than (epsilon, delta) says.
    neighbours: the claim under both neighbouring relations: adding or removing a unit, and replacing one.
    released: everything that leaves the protected side, each with how it is protected.
    assumptions: what must be true.
    caveats: what is not promised.
    """

    unit: str
    mechanism: str
    trusts: Trust
    adversary: str
    neighbours: tuple[PrivacyCost, PrivacyCost]
    released: tuple[str, ...]
    assumptions: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def claim(self) -> PrivacyCost:
        """What the ledger counts and a device's policy compares: for adding or removing a unit; for local privacy, for
        any two updates.
        """
        return self.neighbours[0]

    def lines(self) -> tuple[str, ...]:
        """As sentences, one a line."""
        added, replaced = self.neighbours
        beside = f" (Rényi: {added.epsilon_rdp:.4g})" if added.method != "rdp" else " (by Rényi divergences)"
        return (
            f"Hidden: {self.unit}.",
            f"How: {self.mechanism}.",
            f"Privacy of all rounds together: epsilon {added.epsilon:.4g} at delta {added.delta:g}{beside} for adding "
            f"or removing; epsilon {replaced.epsilon:.4g} for replacing by another.",
            f"Against: {self.adversary}.",
            *(f"Released: {text}." for text in self.released),
            *(f"Assumed: {text}." for text in self.assumptions),
            *(f"Not promised: {text}." for text in self.caveats),
        )


def statement(
    privacy: Privacy,
    rounds: int,
    *,
    cohort: int,
    mode: SecureMode | None = None,
    groups: int = 1,
    draws: Draws | None = None,
    measured: RoundCost | None = None,
) -> Statement:
    """The statement of an experiment of so many rounds.

    cohort: the public number that sums are divided by.
    mode: that of secure aggregation, None where updates come in clear.
    groups: in how many sums.
    draws, measured: see `rounds.round_cost`.

    Raises errors.ExperimentError (``privacy_invalid``).
    """
    events = whole_cost(privacy, rounds, cohort=cohort, draws=draws, measured=measured)
    if isinstance(privacy, LocalLevel):
        # The events are priced between any two updates already.
        delta = privacy.delta * rounds if privacy.mechanism == "gaussian" else LOCAL_DELTA
        found = total_cost(events, min(delta, 0.01))
        claims = found, found
    else:
        claims = total_cost(events, privacy.delta), total_cost(events, privacy.delta, relation="replace_one")
    match privacy:
        case UserLevel():
            return _of_users(privacy, rounds, cohort, mode, groups, claims)
        case ExampleLevel():
            return _of_examples(privacy, rounds, draws, claims)
        case LocalLevel():
            return _of_updates(privacy, rounds, claims)


def trusted(privacy: Privacy, mode: SecureMode | None) -> Trust:
    """Who must behave for the noise to protect.

    mode: that of secure aggregation, None where updates come in clear.

    Noise that devices share rests on the cohort only where the coordinator cannot open a sum of its own choice: in the
    mode ``consistent``. In ``semi_honest`` it can open one device's vector, with that device's share alone.
    """
    if not isinstance(privacy, UserLevel):
        return "device"
    return "cohort" if privacy.mechanism in DISTRIBUTED and mode == "consistent" else "coordinator"


LOCAL_DELTA = 1e-9
"""Of rounds of pure local mechanisms together, for their composition; one upload has delta 0."""

_COORDINATOR = (
    "the coordinator adds the noise and keeps it secret: it, and who breaks into it, sees single updates or exact sums"
)
_SHARES = "at least min_updates devices of a round add their share of noise, as secure rounds enforce"
_FOLLOWS = (
    "the coordinator follows the protocol (mode semi_honest): one that tells devices different lists of survivors can "
    "see one device's vector with that device's share of the noise alone"
)
_ENROLS = (
    "that the other devices of a cohort are really there: the coordinator enrols them, and one that fills a cohort "
    "with its own sees one device's update with that device's share of the noise alone, but where devices ask for "
    "as many endorsed ones as the noise counts on (min_endorsed in their policies)"
)
_HOW: Mapping[str, str] = MappingProxyType(
    {
        "gaussian": "Gaussian noise on the sum of clipped updates, independent in every round",
        "toeplitz": "Gaussian noise correlated over rounds (DP-FTRL, square-root Toeplitz matrix)",
        "banded": "Gaussian noise correlated over rounds (DP-FTRL, banded square-root Toeplitz matrix)",
        "blt": "Gaussian noise correlated over rounds (DP-FTRL, buffered linear Toeplitz matrix)",
        **{name: row.how for name, row in DISTRIBUTIONS.items()},
        "randomised_response": "randomised response on signs of the update",
        "sign_ds": "a few signed coordinates, drawn by the exponential mechanism",
    }
)


def _of_users(
    privacy: UserLevel,
    rounds: int,
    cohort: int,
    mode: SecureMode | None,
    groups: int,
    claims: tuple[PrivacyCost, PrivacyCost],
) -> Statement:
    times = most_participations(privacy, rounds)
    bits = ("the share of updates that needed no clipping: noised, in the price",) if privacy.adaptive else ()
    assumptions = [
        f"a device takes part in at most {times} of {rounds} rounds, at least {privacy.min_separation} apart: "
        "selection refuses it otherwise",
        f"sums are divided by the public number {cohort / groups:g}, whoever took part; every device weighs the same",
        "one person is one device; who has several spends as many budgets",
    ]
    if groups > 1:
        assumptions.insert(
            0, f"each of {groups} groups has all of the noise, and membership of a group reveals no data"
        )
    trusts, shared = trusted(privacy, mode), privacy.mechanism in DISTRIBUTED
    if trusts == "cohort":
        adversary = "everyone, the coordinator included, who sees the noisy sums of all rounds"
    elif shared:
        assumptions.insert(0, _FOLLOWS)
        adversary = "everyone who sees the noisy sums of all rounds, the coordinator while it follows the protocol"
    else:
        assumptions.insert(0, _COORDINATOR if mode is None else f"{_COORDINATOR} (secure aggregation: sums only)")
        adversary = "everyone who sees all model versions, but not the coordinator"
    if shared:
        assumptions.insert(0, _SHARES)
    caveats = [
        "that a device took part at all, and when, is seen by the coordinator",
        "hyper-parameters chosen by looking at private results are not in the price",
    ]
    if trusts == "cohort":
        caveats.insert(0, _ENROLS)
    if privacy.mechanism in MATRIX:
        caveats.insert(0, "one round by itself has more noise than the sum of all: only sums over rounds are accurate")
    return Statement(
        unit="whether one device took part, with all of its rows in all of its rounds",
        mechanism=f"{_HOW[privacy.mechanism]}; noise multiplier {multiplier(privacy, rounds):.4g}",
        trusts=trusts,
        adversary=adversary,
        neighbours=claims,
        released=("the model of every round: noised, in the price", *bits, "losses and metrics of training: nothing"),
        assumptions=(*assumptions, "no amplification by sampling: devices check in when they like"),
        caveats=tuple(caveats),
    )


def _of_examples(
    privacy: ExampleLevel, rounds: int, draws: Draws | None, claims: tuple[PrivacyCost, PrivacyCost]
) -> Statement:
    drawn = draws or Draws(1.0, 1)
    return Statement(
        unit="one row of a device's data",
        mechanism=f"DP-SGD on the device; noise multiplier {_multipliers(privacy, rounds, draws)}",
        trusts="device",
        adversary="everyone, the coordinator included, who sees the updates of all rounds",
        neighbours=claims,
        released=(
            "the update of every round: noised in every step, in the price",
            "losses and metrics of training: nothing; every update says that it weighs one",
        ),
        assumptions=(
            "the plan's graphs clip every row and add the noise that they are given: who signed the plan says so",
            f"every row is in a batch with a probability of at most {drawn.rate:g}, drawn by the device for itself, in "
            f"at most {drawn.steps * rounds} steps",
            "rows are independent of each other: who has many rows is hidden less",
        ),
        caveats=("whether a device took part, and how many rows it has: a row is there, or is a blank in its place",),
    )


def _multipliers(privacy: ExampleLevel, rounds: int, draws: Draws | None) -> str:
    whole, factors = multiplier(privacy, rounds, draws), factors_of(privacy, rounds)
    told = f"{whole * factors[0]:.4g}"
    return told if privacy.schedule is None else f"{told} in the first round, {whole * factors[-1]:.4g} in the last"


def _of_updates(privacy: LocalLevel, rounds: int, claims: tuple[PrivacyCost, PrivacyCost]) -> Statement:
    return Statement(
        unit="a device's update: any two look alike",
        mechanism=(
            f"Gaussian noise on the device, epsilon {privacy.epsilon:g} in every upload"
            if privacy.mechanism == "gaussian"
            else f"{_HOW[privacy.mechanism]}, epsilon {privacy.epsilon:g} in every upload"
        ),
        trusts="device",
        adversary="everyone, the coordinator included, who sees the uploads of all rounds",
        neighbours=claims,
        released=("every upload: noised on the device, in the price",),
        assumptions=(f"a device takes part in at most {rounds} rounds; one upload costs {privacy.epsilon:g}",),
        caveats=("that a device took part, and when",),
    )
