"""`simulate`: an experiment over virtual clients, in this process.

The round machine, the numeric job, the trainers, the codecs and the checks of data are those of a coordinator and its
devices; what is missing is the network, the clock and faults: every client that is chosen answers.
"""

import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.aggregation.plan.bundle import Plan
from coterie.client_sdk.device.data import DataSource
from coterie.client_sdk.device.trainers.base import Trainer
from coterie.errors import ExperimentError
from coterie.protocol.files import write_durably
from coterie.simulation.rounds import Rounds

Listener = Callable[[Mapping[str, Any]], None]
Tensors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A finished simulation: its history, its plan, the newest version's weights and the best one's."""

    history: History
    plan: Plan
    weights: Tensors
    best: Tensors
    frozen: Tensors

    def infer(self, *, best: bool = True) -> bytes:
        """An ONNX file of the model with its weights inside.

        Raises PlanRefused (``plan_graph_absent``) for an external plan.
        """
        from coterie.compute.onnx.weights import embed_weights

        graph = self.plan.manifest.graph("infer")
        sources = {"model": self.best if best else self.weights, "frozen": self.frozen}
        inside = {
            tensor.name: sources[tensor.source][tensor.key] for tensor in graph.inputs if tensor.source in sources
        }
        return embed_weights(self.plan.graphs["infer"], inside)

    def save_infer(self, path: str | Path, *, best: bool = True) -> Path:
        """Write `infer` to a file, whole or not at all, and return its path."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, self.infer(best=best))
        return file


def simulate(
    experiment: Experiment,
    clients: Sequence[DataSource],
    *,
    threads: int = 1,
    trainer: Trainer | None = None,
    on_event: Listener = lambda event: None,
    folder: Path | None = None,
) -> History:
    """The history of an experiment over these clients; see `simulate_full`, which also returns the model."""
    return simulate_full(
        experiment, clients, threads=threads, trainer=trainer, on_event=on_event, folder=folder
    ).history


def simulate_full(
    experiment: Experiment,
    clients: Sequence[DataSource],
    *,
    threads: int = 1,
    trainer: Trainer | None = None,
    on_event: Listener = lambda event: None,
    folder: Path | None = None,
) -> Simulation:
    """Run an experiment over virtual clients.

    clients: each client's rows: arrays by feature and label name, or whatever else a device takes as its data (a file,
    a folder, a function; see `load_data`). threads: clients that work at once, each
    on one thread of its own; the result does not depend on it. trainer: needed for an ``ExternalModel``; None runs the
    plan's graphs.
    on_event: gets one ``round`` event per round. folder: where model versions are kept (``<sha256>.safetensors``); None
    for nowhere.

    Each round takes ``cohort`` clients, chosen uniformly without replacement from the experiment's seed and the round's
    number, all of them when there are fewer. Deadlines and over-selection do not matter here: nobody is late.
    Guarantees: the same experiment, clients and trainer give the same weights bit for bit on one machine.
    Raises ExperimentError (too few clients for ``min_updates``), DataError naming the client, and what a trainer
    raises.
    """
    if threads < 1:
        raise ExperimentError(f"threads must be at least 1, got {threads}.", code="threads")
    begun = time.monotonic()
    with _folders(folder) as (place, scratch):
        rounds = Rounds.of(experiment, clients, trainer=trainer, threads=threads, folder=place, scratch=scratch)
        history = rounds.run(lambda record: on_event(record.to_dict()))
        on_event(
            {"event": "finished", "reason": history.reason, "best": history.best, "seconds": time.monotonic() - begun}
        )
        return Simulation(
            history=history,
            plan=rounds.plan,
            weights=rounds.version(rounds.progress.current),
            best=rounds.version(rounds.progress.kept),
            frozen=rounds.frozen,
        )


@contextmanager
def _folders(folder: Path | None) -> Generator[tuple[Path, Path]]:
    """Where versions are kept, and a folder on the same disk for what is only needed meanwhile."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".coterie-simulation-", dir=folder) as temporary:
        yield folder or Path(temporary), Path(temporary)
