"""One round of a run as a record, the same from a simulation and from a coordinator."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from coterie.aggregation.progress import measured
from coterie.aggregation.round import Round
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.metrics import MetricSums
from coterie.protocol.participants import Participant
from coterie.protocol.spread import Spread, spreads

EvaluationPlace = Literal["central", "federated"]
_LISTED = ("loss", "accuracy")


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One round.

    accepted: updates that count.
    failed: tasks that brought nothing, and updates that were taken in and then found unusable.
    metrics: evaluation means (``loss``, ``accuracy``, …).
    training: the means that clients saw while training.
    fairness: how each metric differs between the clients that evaluated.
    model: SHA-256 of the version that it committed.
    clipped: under secure aggregation, the share of the updates that were longer than the public norm and were shortened
        to it; None in the open, and where noise hides it.
    diverged: clients whose training gave NaN or infinity, as far as they may say so.
    epsilon: what all rounds up to this one have spent of privacy, at delta; None without differential privacy.
    participants: the clients whose updates count, with lag and loss; empty under differential privacy, without losses
        under secure aggregation, and on a coordinator empty above 256 of them.
    """

    round: int
    state: str
    cause: str | None = None
    accepted: int = 0
    failed: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    training: Mapping[str, float] = field(default_factory=dict[str, float])
    fairness: Mapping[str, Spread] = field(default_factory=dict[str, Spread])
    evaluation: EvaluationPlace | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float | None = None
    model: str | None = None
    clipped: float | None = None
    diverged: int = 0
    epsilon: float | None = None
    delta: float | None = None
    participants: tuple[Participant, ...] = ()

    @staticmethod
    def of(
        round: Round,
        *,
        bytes_up: int = 0,
        bytes_down: int = 0,
        seconds: float | None = None,
        diverged: int = 0,
        participants: tuple[Participant, ...] = (),
    ) -> "RoundRecord":
        """The record of an engine's round, with what only the host can count."""
        means = measured(round)
        return RoundRecord(
            round=round.number,
            state=round.phase.value,
            cause=None if round.cause is None else round.cause.value,
            accepted=round.usable,
            failed=round.lost,
            metrics=means,
            training=MetricSums(round.training).means(),
            fairness=spreads(round.federated),
            evaluation=None if not means else "central" if round.central else "federated",
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            seconds=seconds,
            model=round.version if round.phase.value == "committed" else None,
            clipped=round.clipped_share,
            diverged=diverged,
            participants=participants,
        )

    def to_dict(self) -> dict[str, Any]:
        """The round as an event line: ``{"event": "round", "round": 1, "state": "committed", …}`` of JSON values."""
        return {
            "event": "round",
            "round": self.round,
            "state": self.state,
            "cause": self.cause,
            "accepted": self.accepted,
            "failed": self.failed,
            "loss": _finite(self.metrics.get("loss")),
            "accuracy": _finite(self.metrics.get("accuracy")),
            "metrics": {name: _finite(value) for name, value in self.metrics.items()},
            "training": {name: _finite(value) for name, value in self.training.items()},
            "fairness": {name: found.to_dict() for name, found in self.fairness.items()},
            "evaluation": self.evaluation,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "model": self.model,
            "clipped": self.clipped,
            "diverged": self.diverged,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "participants": [to_json(one) for one in self.participants],
        }

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> "RoundRecord":
        """Read an event line; fields that it lacks take their defaults."""
        metrics = dict(value.get("metrics") or {})
        metrics |= {name: value[name] for name in _LISTED if value.get(name) is not None}
        return RoundRecord(
            round=int(value["round"]),
            state=str(value["state"]),
            cause=value.get("cause"),
            accepted=int(value.get("accepted") or 0),
            failed=int(value.get("failed") or 0),
            metrics=_numbers(metrics),
            training=_numbers(value.get("training") or {}),
            fairness=_spreads(value.get("fairness") or {}),
            evaluation=cast("EvaluationPlace | None", value.get("evaluation")),
            bytes_up=int(value.get("bytes_up") or 0),
            bytes_down=int(value.get("bytes_down") or 0),
            seconds=_optional(value, "seconds"),
            model=value.get("model"),
            clipped=_optional(value, "clipped"),
            diverged=int(value.get("diverged") or 0),
            epsilon=_optional(value, "epsilon"),
            delta=_optional(value, "delta"),
            participants=tuple(
                from_json(Participant, one, code="run_unreadable") for one in value.get("participants") or ()
            ),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _optional(value: Mapping[str, Any], name: str) -> float | None:
    """A number, or None. Raises TypeError or ValueError for anything else."""
    return None if value.get(name) is None else float(value[name])


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None}


def _spreads(values: Mapping[str, Mapping[str, float]]) -> dict[str, Spread]:
    return {name: Spread.from_dict(value) for name, value in values.items()}
