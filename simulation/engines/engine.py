"""What an engine is, and which there are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import Plan
from coterie.client_sdk.device.trainers.base import Trainer
from coterie.errors import ConfigurationError
from coterie.protocol.arrays import FloatArrays
from coterie.simulation.assignment import Assignment
from coterie.simulation.population import Client
from coterie.simulation.shares import WorkShares
from coterie.simulation.work import ClientEvaluation, Trained

HELD = 8
"""So many results stay as they are while more are taken."""


class Engine(Protocol):
    """Lets clients work.

    Guarantees: results come in an order that depends on the clients alone, each a function of its client, the weights
    and the assignment; no more than a few of them exist at once, and the arrays of one may be overwritten when `HELD`
    more have been taken. An error of one client ends the call with that error.
    """

    def train(self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> Iterator[Trained]:
        """Each client's update."""
        ...

    def evaluate(
        self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment
    ) -> Iterator[ClientEvaluation]:
        """Each client's metric sums; all of them have rows to evaluate on."""
        ...

    def close(self) -> None:
        """End what was started. Safe to call twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an engine is made from.

    name: as the user wrote it.
    trainer: a value, or where a worker finds one (``module:attribute``).
    workers: how many clients work at once.
    threads: of each.
    shares: the run's threads, one for each worker.
    """

    name: str
    experiment: Experiment
    plan: Plan
    frozen: FloatArrays
    trainer: Trainer | str
    workers: int
    threads: int
    shares: WorkShares


@dataclass(frozen=True)
class _Entry:
    """Where an engine's class is; imported when it is asked for.

    prefix: whether more may follow its name.
    """

    module: str
    attribute: str
    prefix: bool = False


ENGINES: Mapping[str, _Entry] = {
    "threads": _Entry("coterie.simulation.engines.threads", "Threads"),
    "processes": _Entry("coterie.simulation.engines.processes", "Processes"),
    "batched": _Entry("coterie.simulation.engines.batched", "Batched"),
    "batched:": _Entry("coterie.simulation.engines.batched", "Batched", prefix=True),
    "auto": _Entry("coterie.simulation.engines.measured", "Fastest"),
    "ray:local": _Entry("coterie.simulation.engines.ray", "RayCluster"),
    "ray://": _Entry("coterie.simulation.engines.ray", "RayCluster", prefix=True),
}


def open_engine(setting: Setting) -> Engine:
    """The engine of that name. Raises ConfigurationError (``unknown_engine``) for any other."""
    for name, entry in ENGINES.items():
        if setting.name == name or (entry.prefix and setting.name.startswith(name)):
            make: Callable[[Setting], Engine] = getattr(import_module(entry.module), entry.attribute)
            return make(setting)
    raise ConfigurationError(
        f"There is no engine {setting.name[:64]!r}.",
        hint="Choose threads, processes, batched, batched:16, auto, ray:local or ray://host:10001.",
        code="unknown_engine",
    )
