"""Clients on a Ray cluster: ``ray:local`` starts one on this machine and ends it, ``ray://host:10001`` joins one.

Only names, JSON text and tensor files as bytes are handed to Ray; how it moves them is its own business. Machines of a
cluster need coterie and the module that a trainer is named in; rows are read where the run was started and sent along.
"""

import json
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.device.trainers.base import require_arrays
from coterie.errors import CoterieError, RemoteError
from coterie.protocol.arrays import ArraysByName, FloatArrays
from coterie.protocol.conversion import to_json
from coterie.protocol.device import TaskKind
from coterie.protocol.tensors import decode_tensors, encode_tensors
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines.engine import Setting
from coterie.simulation.engines.job import JsonObject, measured_of, raise_reported, trained_of
from coterie.simulation.engines.naming import required_name
from coterie.simulation.engines.ray_joining import join
from coterie.simulation.engines.remote import Remote
from coterie.simulation.population import Client
from coterie.simulation.work import ClientEvaluation, Trained

Result = TypeVar("Result")

PATIENCE_S = 120.0
"""How long workers may take to start, where a cluster is busy or grows."""

# Jobs that an actor has at most: one that it works at, one that already lies there.
_AHEAD = 2


class RayCluster:
    """``workers`` actors of one CPU each. An actor that dies is started again once by Ray, and its jobs done again.

    Raises ConfigurationError: ``extra_missing`` without Ray, ``trainer_not_named`` for a trainer that is a value of
    this process; RemoteError: ``ray_unreachable``, ``ray_busy``, ``worker_failed``, ``worker_lost``.
    """

    def __init__(self, setting: Setting) -> None:
        trainer = required_name(setting.trainer, setting.name)
        self._name = setting.name
        self._actors: list[_Actor] = []
        self._weights: tuple[str, Any] = ("", None)
        self._cluster = join(setting.name, setting.workers)
        self._ray = self._cluster.ray
        try:
            self._start(setting, trainer)
        except BaseException:
            self.close()
            raise

    def train(self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> Iterator[Trained]:
        """See `Engine`."""
        return self._each("train", clients, weights, assignment, trained_of)

    def evaluate(
        self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment
    ) -> Iterator[ClientEvaluation]:
        """See `Engine`."""
        return self._each("evaluate", clients, weights, assignment, measured_of)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self._actors:
            # A connection that broke has nothing to end: Ray does so where the actors are.
            with suppress(*self._broken()):
                self._cluster.require()
                self._ray.kill(actor.handle)
        self._actors, self._weights = [], ("", None)
        self._cluster.close()

    def _start(self, setting: Setting, trainer: str) -> None:
        plan = {name: bytes(data) for name, data in setting.plan.graphs.items()}
        arguments = (setting.plan.manifest.data, plan, encode_tensors(setting.frozen), trainer)
        try:
            actor = self._ray.remote(Remote).options(num_cpus=1, max_restarts=1, max_task_retries=1)
            self._actors = [_Actor(actor.remote(*arguments)) for _ in range(setting.workers)]
            asked = [actor.handle.ready.remote() for actor in self._actors]
            ready, late = self._ray.wait(asked, num_returns=len(asked), timeout=PATIENCE_S)
            if late:
                raise self._cluster_busy(len(ready), len(asked))
            answers = cast(list[str], self._ray.get(ready))
        except self._broken() as error:
            raise RemoteError(
                f"No worker could be started on the Ray cluster {self._name!r}: {error}",
                hint="Its machines need coterie, of the same version as here.",
                code="worker_lost",
            ) from error
        for answer in answers:
            try:
                raise_reported(json.loads(answer))
            except CoterieError as error:
                raise RemoteError(
                    f"A worker of the Ray cluster {self._name!r} cannot work: {error.message}",
                    hint="Its machines need coterie and the module of the trainer where import finds them.",
                    code="worker_failed",
                ) from error

    def _cluster_busy(self, ready: int, wanted: int) -> RemoteError:
        total, free = (
            resources.get("CPU", 0) for resources in (self._ray.cluster_resources(), self._ray.available_resources())
        )
        return RemoteError(
            f"The Ray cluster {self._name!r} started {ready} of {wanted} workers in {PATIENCE_S:.0f} seconds. "
            f"It has {total:.0f} CPUs, {free:.0f} of them free.",
            hint="Each worker takes one CPU: ask for fewer workers, or wait until the cluster has less to do.",
            code="ray_busy",
        )

    def _broken(self) -> tuple[type[Exception], ...]:
        """What Ray raises when an actor or the cluster is gone."""
        return (self._ray.exceptions.RayError, ConnectionError)

    def _each(
        self,
        kind: TaskKind,
        clients: Sequence[Client],
        weights: FloatArrays,
        assignment: Assignment,
        read: Callable[[JsonObject, ArraysByName], Result],
    ) -> Iterator[Result]:
        if self._weights[0] != assignment.base:
            # Once for all actors: Ray hands each of them a view of shared memory, or one copy on another machine.
            with self._translate_errors(f"the weights of round {assignment.round}"):
                self._weights = (assignment.base, self._ray.put(np.frombuffer(encode_tensors(weights), np.uint8)))
        waiting: deque[tuple[_Actor, Any, int]] = deque()

        def next_result() -> Result:
            actor, reference, number = waiting.popleft()
            actor.jobs -= 1
            with self._translate_errors(f"client {number} of round {assignment.round}"):
                answer, data = cast(tuple[str, bytes], self._ray.get(reference))
            told = cast(JsonObject, json.loads(answer))
            raise_reported(told)
            return read(told, decode_tensors(data))

        try:
            for client in clients:
                actor = min(self._actors, key=lambda one: one.jobs)
                with self._translate_errors(f"client {client.number} of round {assignment.round}"):
                    waiting.append((actor, self._submit(actor, kind, client, assignment), client.number))
                actor.jobs += 1
                if len(waiting) >= _AHEAD * len(self._actors):
                    yield next_result()
            while waiting:
                yield next_result()
        finally:
            for actor, _, _ in waiting:
                actor.jobs -= 1

    @contextmanager
    def _translate_errors(self, lost: str) -> Generator[None]:
        """Say by name what Ray could not do, and what was lost with it."""
        try:
            self._cluster.require()
            yield
        except self._broken() as error:
            hint = "Often memory ran out: use fewer workers, or larger machines."
            if isinstance(error, ConnectionError):
                hint = "The connection broke. A run with a folder can be continued from its last round: resume=True."
            raise RemoteError(
                f"The Ray cluster {self._name!r} lost {lost}: {error}",
                hint=hint,
                code="worker_lost",
            ) from error

    def _submit(self, actor: "_Actor", kind: TaskKind, client: Client, assignment: Assignment) -> Any:
        rows: dict[str, NDArray[Any]] = {}
        source = client.source if self._cluster.here else None
        if source is None:
            what = f"The engine {self._name!r}, which sends rows to its workers,"
            rows = dict(require_arrays(client.rows(kind), what))
        job = json.dumps({"kind": kind, "number": client.number, "source": source, "assignment": to_json(assignment)})
        return actor.handle.perform.remote(job, self._weights[1], encode_tensors(rows), encode_tensors(client.state))


@dataclass
class _Actor:
    """An actor's handle, and how many jobs it has."""

    handle: Any
    jobs: int = 0
