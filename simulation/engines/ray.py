"""Clients on a Ray cluster: ``ray:local`` starts one on this machine and ends it, ``ray://host:10001`` joins one.

Only names, JSON text and tensor files as bytes are handed to Ray; how it moves them is its own business. Machines of a
cluster need coterie, and whatever module a trainer or a source is named in.
"""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.device.trainers.base import Tensors
from coterie.errors import ConfigurationError, RemoteError
from coterie.protocol.tensors import decode_tensors, encode_tensors
from coterie.simulation.engines.engine import Setting
from coterie.simulation.engines.job import Arrays, Json, measured_of, raise_told, trained_of
from coterie.simulation.engines.naming import required_name
from coterie.simulation.engines.remote import Remote
from coterie.simulation.population import Client
from coterie.simulation.work import Assignment, Measured, Trained

Result = TypeVar("Result")
Kind = Literal["train", "evaluate"]

LOCAL = "ray:local"
# Jobs that an actor has at most: one that it works at, one that already lies there.
_AHEAD = 2


class RayCluster:
    """``workers`` actors of one CPU each. An actor that dies is started again once by Ray, and its jobs done again.

    Raises ConfigurationError: ``extra_missing`` without Ray, ``trainer_not_named`` for a trainer that is a value of
    this process; RemoteError: ``ray_unreachable``, ``worker_lost``.
    """

    def __init__(self, setting: Setting) -> None:
        trainer = required_name(setting.trainer, setting.name)
        self._ray = _ray()
        self._begun = False
        self._connect(setting)
        plan = {name: bytes(data) for name, data in setting.plan.graphs.items()}
        arguments = (setting.plan.manifest.data, plan, encode_tensors(setting.frozen), trainer)
        options = {"num_cpus": 1, "max_restarts": 1, "max_task_retries": 1}
        actor = self._ray.remote(Remote).options(**options)
        self._actors: list[_Actor] = [_Actor(actor.remote(*arguments)) for _ in range(setting.workers)]
        self._weights: tuple[str, Any] = ("", None)

    def train(self, clients: Sequence[Client], weights: Tensors, assignment: Assignment) -> Iterator[Trained]:
        """See `Engine`."""
        return self._each("train", clients, weights, assignment, trained_of)

    def evaluate(self, clients: Sequence[Client], weights: Tensors, assignment: Assignment) -> Iterator[Measured]:
        """See `Engine`."""
        return self._each("evaluate", clients, weights, assignment, measured_of)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._actors = []
        if self._begun:
            self._ray.shutdown()
            self._begun = False

    def _connect(self, setting: Setting) -> None:
        if self._ray.is_initialized():
            return
        # Workers find the modules which this process finds; nothing is reported to anybody.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        local: dict[str, Any] = {
            "address": "local",
            "num_cpus": setting.workers,
            "include_dashboard": False,
            "runtime_env": {"env_vars": {"PYTHONPATH": path}},
        }
        given = local if setting.name == LOCAL else {"address": setting.name}
        try:
            self._ray.init(**given, logging_level="error", log_to_driver=False)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise RemoteError(
                f"There is no Ray cluster at {setting.name!r}: {error}",
                hint="Start one with `ray start --head`, or use engine='ray:local'.",
                code="ray_unreachable",
            ) from error
        self._begun = True

    def _each(
        self,
        kind: Kind,
        clients: Sequence[Client],
        weights: Tensors,
        assignment: Assignment,
        read: Callable[[Json, Arrays], Result],
    ) -> Iterator[Result]:
        if self._weights[0] != assignment.base:
            # Once for all actors: Ray hands each of them a view of shared memory, or one copy on another machine.
            self._weights = (assignment.base, self._ray.put(np.frombuffer(encode_tensors(weights), np.uint8)))
        waiting: deque[tuple[_Actor, Any, int]] = deque()

        def take() -> Result:
            actor, reference, number = waiting.popleft()
            try:
                answer, data = cast(tuple[str, bytes], self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                raise RemoteError(
                    f"The Ray cluster lost client {number} of round {assignment.round}: {error}",
                    hint="Often memory was short: take fewer workers, or larger machines.",
                    code="worker_lost",
                ) from error
            finally:
                actor.jobs -= 1
            told = cast(Json, json.loads(answer))
            raise_told(told)
            return read(told, decode_tensors(data))

        for client in clients:
            actor = min(self._actors, key=lambda one: one.jobs)
            waiting.append((actor, self._asked(actor, kind, client, assignment), client.number))
            actor.jobs += 1
            if len(waiting) >= _AHEAD * len(self._actors):
                yield take()
        while waiting:
            yield take()

    def _asked(self, actor: "_Actor", kind: Kind, client: Client, assignment: Assignment) -> Any:
        rows: dict[str, NDArray[Any]] = {}
        if client.source is None:
            shard = client.shard()
            rows = dict(shard.train if kind == "train" else shard.held_out)
        job = json.dumps(
            {"kind": kind, "number": client.number, "source": client.source, "assignment": assignment.to_json()}
        )
        return actor.handle.perform.remote(job, self._weights[1], encode_tensors(rows), encode_tensors(client.state))


@dataclass
class _Actor:
    """An actor's handle, and how many jobs it has."""

    handle: Any
    jobs: int = 0


def _ray() -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "The engine 'ray' needs Ray, which is not installed.",
            hint="pip install 'coterie[ray]'",
            code="extra_missing",
        ) from error
