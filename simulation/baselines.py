"""What federation is measured against: training on everybody's rows in one place, and each client by itself.

Both run the experiment's own plan, optimizer, batch size and number of rounds, with one client, FedAvg and a server
that adds the step as it is, so a round is the client's local training and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import FedAvg
from coterie.aggregation.server_optimizers import server_sgd
from coterie.client_sdk.device.trainers.base import Trainer
from coterie.client_sdk.rows.loading import DataSource, load_data
from coterie.errors import ExperimentError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema
from coterie.simulation.simulation import Simulation, simulate_full

# What a policy says about choosing among clients, which means nothing where there is one.
_OF_MANY = (
    "cohort", "min_updates", "over_selection", "dropout", "mode", "concurrency", "selection", "min_examples", "labels",
    "rest_rounds", "rest_s", "evaluation_cohort", "weight_cap",
)  # fmt: skip


def centralised(
    experiment: Experiment, clients: Sequence[DataSource], *, trainer: Trainer | str | None = None
) -> Simulation:
    """The experiment on all clients' rows put together: what there would be to gain without privacy.

    clients: as in `simulate`. A round goes through all rows ``epochs`` times. Of the pool the same share of rows is
        held out, but not the same rows.
    Raises what `simulate` raises.
    """
    if not clients:
        raise ExperimentError(
            "A baseline needs at least one client.",
            hint="Give the rows of each client: paths, or arrays by name.",
            code="no_clients",
        )
    parts = [_rows(source, experiment.schema, number) for number, source in enumerate(clients)]
    pool = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return simulate_full(_for_one_client(experiment), [pool], trainer=trainer)


@dataclass(frozen=True)
class LocalOnly:
    """Every client's own training: its run, in the order of the clients."""

    runs: tuple[Simulation, ...]

    def last(self, metric: str) -> tuple[float, ...]:
        """Each client's last value of a metric; clients that never measured it are left out."""
        curves = (run.history.curve(metric) for run in self.runs)
        return tuple(curve[-1][1] for curve in curves if curve)

    def mean(self, metric: str) -> float:
        """Over the clients. Raises ExperimentError (``not_measured``) when none measured it."""
        return float(np.mean(self._require_metric(metric)))

    def worst_decile(self, metric: str, *, lowest: bool = True) -> float:
        """The mean over the tenth of the clients, at least one, with the lowest values (the highest, for a loss)."""
        values = sorted(self._require_metric(metric), reverse=not lowest)
        return float(np.mean(values[: ceil(len(values) / 10)]))

    def _require_metric(self, metric: str) -> tuple[float, ...]:
        values = self.last(metric)
        if not values:
            raise ExperimentError(
                f"No client measured {metric!r}.",
                hint="Give the experiment evaluation rows, or hold rows out and set evaluate_every.",
                code="not_measured",
            )
        return values


def local_only(
    experiment: Experiment, clients: Sequence[DataSource], *, trainer: Trainer | str | None = None
) -> LocalOnly:
    """Each client trains by itself from the same first weights: what it has without the others.

    clients: as in `simulate`. Each is measured as the experiment says: on the experiment's evaluation rows, or else on
        the rows that it holds out itself.
    Raises what `simulate` raises.
    """
    if not clients:
        raise ExperimentError(
            "A baseline needs at least one client.",
            hint="Give the rows of each client: paths, or arrays by name.",
            code="no_clients",
        )
    alone = _for_one_client(experiment)
    return LocalOnly(tuple(simulate_full(alone, [source], trainer=trainer) for source in clients))


def _for_one_client(experiment: Experiment) -> Experiment:
    """The experiment for one client."""
    policy = experiment.rounds.model_dump(exclude=set(_OF_MANY))
    # A schedule of a number that only the method has goes with the method.
    own = set(experiment.optimizer.hyper if experiment.optimizer else ())
    schedule = {name: values for name, values in (experiment.rounds.hyper_schedule or {}).items() if name in own}
    rounds = RoundPolicy.model_validate({**policy, "cohort": 1, "hyper_schedule": schedule or None})
    return replace(
        experiment,
        algorithm=FedAvg(),
        server_optimizer=server_sgd(),
        reducer="mean",
        codecs=("float32",),
        broadcast="float32",
        rounds=rounds,
    )


def _rows(source: DataSource, schema: DataSchema, number: int) -> Mapping[str, NDArray[Any]]:
    if isinstance(source, Mapping):
        return schema.check(cast(Mapping[str, NDArray[Any]], source), f"client {number}")
    return load_data(source, schema)
