"""IFCA: k models for k kinds of clients; each client trains the one that fits its rows best.

Ghosh, Chung, Yin, Ramchandran: "An Efficient Framework for Clustered Federated Learning" (2020), algorithm 1 with
model averaging. A version holds k models, under ``<j>/<name>``, that start from different seeds. A client measures
each on its training rows, trains the one with the least loss, and uploads its change in that model's place and zeros in
the others', beside a vector that says which it was. The server moves each model by the mean over those who chose it,
and leaves one as it is that nobody chose; so its optimizer must have no momentum.

So the choice leaves the device only inside two sums. Clients are evaluated with the model that has the least loss on
the rows that they are evaluated on, as in the authors' code. The exported graph returns the outputs of all models,
``[k, rows, …]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    Begin,
    ClientPart,
    Deployment,
    Evaluation,
    Finish,
    Finished,
    Probe,
    Rules,
    Shapes,
    whole_delta,
)
from coterie.aggregation.horizontal.needs import check_number
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays, MethodTerms
    from coterie.compute.array import Array

CHOICE = "choice"
"""The section that holds a 1 for the model that the client chose."""

MOST = 64


def _model(version: Arrays, number: int) -> dict[str, Array]:
    """The number-th of the models that a version holds."""
    prefix = f"{number}/"
    return {name.removeprefix(prefix): version[name] for name in version if name.startswith(prefix)}


def _loss(number: int) -> Callable[[Probe], Array]:
    return lambda probe: probe.loss(_model(probe.version, number))


def _indicate_least(probe: Arrays, count: int) -> list[Array]:
    """For each model ``[1]``: 1 for the first with the least loss, else 0."""
    from coterie.compute import numpy as xp

    losses = [probe[f"loss{number}"] for number in range(count)]
    least = losses[0]
    for loss in losses[1:]:
        least = xp.minimum(least, loss)
    chosen: list[Array] = []
    free = xp.ones((1,))
    for loss in losses:
        chosen.append(free * xp.astype(loss <= least, xp.float32))
        free = free - chosen[-1]
    return chosen


def _select(version: Arrays, probe: Arrays, count: int) -> dict[str, Array]:
    """The chosen model's tensors."""
    from coterie.compute import numpy as xp

    models, chosen = [_model(version, number) for number in range(count)], _indicate_least(probe, count)
    taken = models[0]
    for model, one in zip(models[1:], chosen[1:], strict=True):
        taken = {name: xp.where(one > 0.5, model[name], value) for name, value in taken.items()}
    return taken


def _needs(terms: MethodTerms) -> Rules:
    numbers = terms.server_optimizer.parameters
    still = not any(numbers.get(name) for name in ("momentum", "beta1"))
    return ((still, "IFCA needs a server optimizer without momentum: it would move a model that no client chose"),)


def IFCA(clusters: int) -> Algorithm:
    """Iterative federated clustering.

    clusters: k, from 1 (FedAvg) to 64.

    Models with running statistics are refused. Raises errors.ExperimentError for another number of clusters.
    """
    count = int(check_number("IFCA", "clusters", clusters, least=1, below=MOST + 1, whole=True))

    def version(shapes: Shapes) -> Mapping[str, tuple[int, ...]]:
        return {f"{number}/{name}": shape for number in range(count) for name, shape in shapes.tensors.items()}

    def initial(draw: Callable[[int], ArraysByName]) -> ArraysByName:
        return {f"{number}/{name}": value for number in range(count) for name, value in draw(number).items()}

    def start(context: Begin) -> Arrays:
        return _select(context.base, context.probe, count)

    def finish(context: Finish) -> Finished:
        from coterie.compute import numpy as xp

        chosen = _indicate_least(context.probe, count)
        change = {
            f"{number}/{name}": one * (value - context.base[f"{number}/{name}"])
            for number, one in enumerate(chosen)
            for name, value in context.end.items()
        }
        return Finished(sections={DELTA: change, CHOICE: xp.concat(chosen)}, client_state={})

    def sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
        return (*whole_delta(shapes, layout), SectionSpec(name=CHOICE, length=count))

    def evaluated(context: Evaluation) -> Arrays:
        return _select(context.version, context.probe, count)

    def deployed(context: Deployment) -> tuple[Arrays, ...]:
        return tuple(_model(context.version, number) for number in range(count))

    def apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
        share = aggregates.sections[CHOICE][:, np.newaxis]
        # The models lie one after another in the layout, all of one size.
        change = aggregates.sections[DELTA].reshape(count, -1)
        mean = np.divide(change, share, out=np.zeros_like(change), where=share > 0)
        return optimize(mean.reshape(-1)), state

    return Algorithm(
        name="ifca",
        parameters={"clusters": float(count)},
        client=ClientPart(
            version=version,
            initial=initial,
            probe={f"loss{number}": _loss(number) for number in range(count)},
            start=start,
            sections=sections,
            finish=finish,
            evaluated=evaluated,
            deployed=deployed,
            statistics=False,
        ),
        server=ServerPart(apply=apply, reads=(DELTA, CHOICE)),
        needs=_needs,
    )
