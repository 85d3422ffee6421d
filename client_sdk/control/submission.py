"""From an experiment to a running one on a coordinator."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import Plan
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.rows.loading import load_evaluation
from coterie.errors import ExperimentError, InternalError
from coterie.protocol.control import ExperimentCreate, ExperimentView, ServerRule
from coterie.protocol.device import PlanRef
from coterie.protocol.signing import SigningKey
from coterie.protocol.tensors import encode_tensors
from coterie.protocol.wire import BlobRef


@dataclass(frozen=True, kw_only=True)
class Submission:
    """An experiment on its way to a coordinator.

    key: signs the plan.
    population: its name; made from the experiment's name when None.
    """

    experiment: Experiment
    key: SigningKey
    population: str | None = None


async def send(
    client: ControlClient, submission: Submission, *, on_progress: Callable[[str], None] = lambda step: None
) -> ExperimentView:
    """Compile, sign and send the plan, make sure of population and signer, send the other blobs, start the experiment.

    on_progress: told in a few words what is being done.
    Raises ExperimentError, DataError (evaluation rows), RemoteError.
    """
    experiment = submission.experiment
    on_progress("compiling")
    compiled = await asyncio.to_thread(compile_plan, experiment)
    # Before anything is sent: rows that cannot be read leave nothing behind.
    rows = await asyncio.to_thread(load_evaluation, experiment.evaluation, experiment.schema)
    plan = compiled.plan.sign(submission.key)
    population = submission.population or slug(experiment.name)
    # First the plan: whose role may start no experiment is refused before a population is made or changed.
    await client.put_blob(plan.manifest.data, kind="plan")
    on_progress(f"population {population}")
    await client.ensure_population(population, experiment.schema, signers=(submission.key.public,))
    on_progress("sending")
    request = await _blobs(client, experiment, compiled, plan, population, rows)
    view = await client.create_experiment(request)
    on_progress(f"started {view.id}")
    return view


def slug(name: str) -> str:
    """A population's name made from an experiment's. Raises ExperimentError when nothing of the name can be used."""
    text = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:63]
    if not text:
        raise ExperimentError(
            f"No population name can be made from {name!r}.", hint="Name the population.", code="population_name"
        )
    return text


async def _blobs(
    client: ControlClient,
    experiment: Experiment,
    compiled: CompiledPlan,
    plan: Plan,
    population: str,
    rows: Mapping[str, NDArray[Any]] | None,
) -> ExperimentCreate:
    if plan.signature is None or plan.signer is None:
        raise InternalError("A plan that is to be sent must be signed.")
    for graph in plan.graphs.values():
        await client.put_blob(graph, kind="graph")
    initial = await client.put_blob(compiled.initial_bytes, kind="model")
    frozen_bytes = compiled.frozen_bytes
    frozen: BlobRef | None = None if frozen_bytes is None else await client.put_blob(frozen_bytes, kind="frozen")
    evaluation = None if rows is None else await client.put_blob(encode_tensors(rows), kind="evaluation")
    return ExperimentCreate(
        name=experiment.name,
        population=population,
        plan=PlanRef(id=plan.id, signature=plan.signature, signer=plan.signer),
        initial=initial,
        rounds=experiment.rounds,
        server=ServerRule(
            name=experiment.server_optimizer.name, parameters=dict(experiment.server_optimizer.parameters)
        ),
        reducer=experiment.reducer,
        codecs=experiment.codecs,
        frozen=frozen,
        evaluation=evaluation,
        evaluation_metrics=experiment.evaluation_metrics,
        seed=experiment.seed,
        secure=experiment.secure,
        privacy=experiment.privacy,
    )
