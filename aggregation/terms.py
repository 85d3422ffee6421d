"""What is asked of an experiment, as one value: of `Experiment` and of a coordinator's request alike.

Every rule about what goes together takes `Terms` (`coterie.aggregation.fitting`), so that a researcher's Python, a
request that somebody wrote by hand and an edge are told the same by the same code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.aggregation.horizontal.algorithm import Algorithm
from coterie.aggregation.plan.manifest import Broadcast, NamedRule, TrainerKind, Training
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.protocol.privacy import Privacy
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema
from coterie.protocol.secure_aggregation import SecureAggregation


@dataclass(frozen=True, kw_only=True)
class Terms:
    """An experiment, less what only its graphs say.

    trainer: who makes the steps: the plan's graphs, or a trainer of the clients' own.
    optimizer: the clients', by its name and numbers; None for a trainer of their own.
    hyper: the hyper-parameters of a step and their defaults.
    overrides: those that the experiment sets for all rounds.
    training: how a device goes through its rows.
    secure: with its mode settled; None where updates travel in the open.
    secure_by_default: whether nobody asked for that.
    metrics: names of the sums that are measured.
    central: whether the coordinator has evaluation rows.
    evaluation_metrics: what it measures over all of them at once.
    several: whether a version holds several models.
    personal: whether a client measures a model of its own, part of which is client state.
    own_weights: whether the researcher gave the first version.
    statistics: names of running statistics, as far as they are known.
    """

    name: str
    algorithm: Algorithm
    trainer: TrainerKind
    optimizer: NamedRule | None
    server_optimizer: ServerOptimizer
    hyper: Mapping[str, float]
    overrides: Mapping[str, float] = field(default_factory=dict[str, float])
    reducer: str
    rounds: RoundPolicy
    training: Training
    codecs: tuple[str, ...]
    broadcast: Broadcast
    schema: DataSchema
    secure: SecureAggregation | None
    secure_by_default: bool = False
    privacy: Privacy | None
    metrics: tuple[str, ...]
    central: bool
    evaluation_metrics: tuple[str, ...] = ()
    several: bool = False
    personal: bool = False
    own_weights: bool = False
    statistics: tuple[str, ...] = ()
