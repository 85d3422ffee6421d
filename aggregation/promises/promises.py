"""What an experiment promises about who sees what, and what it does not: one table, by how updates are aggregated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from coterie.aggregation.private.secure_aggregation import fewest_of_group, mode_for
from coterie.aggregation.promises.drowned import drowned
from coterie.privacy.secagg.parameters import LEAST_CLIENTS

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment

AggregationMode = Literal["open", "semi_honest", "consistent", "groups"]


@dataclass(frozen=True)
class Promise:
    """Sentences.

    promises: what holds.
    does_not: what somebody might expect and does not hold.
    """

    promises: tuple[str, ...]
    does_not: tuple[str, ...]


_ONLY_SUMS = (
    "The coordinator sees the sum of the updates, of their weights and of their metrics, and no client's own.",
    "No update is opened if fewer clients remain than the task says, and the client holds it to that.",
)
_SUMS_TELL = (
    "A sum reveals something about the clients in it, less the more they are: only differential privacy bounds how "
    "much.",
    "A client that follows no rule may send any numbers: the public norm binds honest clients alone.",
    "Who enrols devices can enrol many of his own: up to the share `corrupt` of a cohort is allowed for, not more.",
)

PROMISES: Mapping[AggregationMode, Promise] = MappingProxyType(
    {
        "open": Promise(
            promises=(
                "Updates travel signed. Where the address begins with https, only the coordinator reads them.",
                "Robust reducers and norm bounds hold against clients that lie, as far as their f says.",
            ),
            does_not=("The coordinator sees every client's update, and so what can be read out of it.",),
        ),
        "semi_honest": Promise(
            promises=_ONLY_SUMS,
            does_not=(
                "A coordinator that lies about who is there, or who dropped out, to different clients is not caught "
                "in all cases, and can read one client's update, with its own share of the noise alone where clients "
                "share that: the mode consistent keeps it from that.",
                *_SUMS_TELL,
            ),
        ),
        "consistent": Promise(
            promises=(
                *_ONLY_SUMS,
                "That holds also where the coordinator lies about the roster or the survivors: clients sign what "
                "they received, and reveal nothing if the versions differ.",
            ),
            does_not=_SUMS_TELL,
        ),
        "groups": Promise(
            promises=(
                "The coordinator sees the sum of each group of clients drawn by lot, and no client's own.",
                "A robust rule over the groups' means holds while fewer groups than its f have a client that lies.",
            ),
            does_not=(
                "A client is hidden among those of its own group only.",
                "A lie spoils its whole group, so fewer liars are borne than in the open.",
                *_SUMS_TELL,
            ),
        ),
    }
)


def mode_of(experiment: Experiment) -> AggregationMode:
    """How the experiment's updates are aggregated."""
    secure = experiment.secure
    if secure is None:
        return "open"
    return mode_for(secure, experiment.privacy) if secure.groups is None else "groups"


def too_small(experiment: Experiment) -> str | None:
    """Why devices would give back the training of this experiment unless their policies say otherwise; else None."""
    secure, rounds = experiment.secure, experiment.rounds
    if secure is None:
        return None
    fewest = rounds.min_updates if secure.groups is None else fewest_of_group(rounds.cohort, secure)
    if fewest >= LEAST_CLIENTS:
        return None
    return (
        f"A sum may be of only {fewest} clients, and devices take part in none of fewer than {LEAST_CLIENTS} unless "
        f"their own policy says so: min_cohort = {fewest}."
    )


def remembers(experiment: Experiment) -> str | None:
    """Why a method that keeps state on devices rests on the coordinator under secure aggregation; else None."""
    if experiment.secure is None or not experiment.algorithm.stateful:
        return None
    return (
        f"{experiment.algorithm.name} keeps state on devices: that only sums are seen rests on a coordinator that "
        "follows the protocol, since state that a crafted version leaves can make a later sum that of one device."
    )


def lines(experiment: Experiment) -> tuple[str, ...]:
    """What this experiment promises (``+``) and does not (``-``), a sentence a line. What its differential privacy
    promises says `coterie.privacy.dp.statement`.
    """
    promise = PROMISES[mode_of(experiment)]
    further = (remembers(experiment), too_small(experiment), drowned(experiment))
    return (
        *(f"+ {sentence}" for sentence in promise.promises),
        *(f"- {sentence}" for sentence in promise.does_not),
        *(f"- {sentence}" for sentence in further if sentence is not None),
    )
