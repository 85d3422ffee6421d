"""Clients in threads of this process. ONNX Runtime and NumPy release the interpreter's lock while they compute."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np

from coterie.protocol.arrays import FloatArrays
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines.engine import Setting
from coterie.simulation.engines.naming import resolve_trainer
from coterie.simulation.population import Client
from coterie.simulation.work import ClientEvaluation, Trained, Workplace

Result = TypeVar("Result")


# glibc gives memory that is freed in a thread back to the system at once, to fault it in anew for the next client,
# unless it has seen a large block freed before: from then on it keeps twice as much. Nobody touches this block.
_LARGE = 31 << 20


class Threads:
    """Clients in the threads of the run; with a single worker, in the caller's."""

    def __init__(self, setting: Setting) -> None:
        self._workplace = Workplace(setting.plan, setting.frozen, resolve_trainer(setting.trainer))
        np.empty(_LARGE, np.uint8)
        self._shares = setting.shares

    def train(self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> Iterator[Trained]:
        """See `Engine`."""

        def work(client: Client) -> Trained:
            return self._workplace.train(client.number, client.shard().train, client.state, weights, assignment)

        return self._each(work, clients)

    def evaluate(
        self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment
    ) -> Iterator[ClientEvaluation]:
        """See `Engine`."""

        def work(client: Client) -> ClientEvaluation:
            held_out = client.shard().held_out
            return self._workplace.evaluate(client.number, held_out, client.state, weights, assignment)

        return self._each(work, clients)

    def close(self) -> None:
        """Nothing was started here: the threads are the run's."""

    def _each(self, work: Callable[[Client], Result], clients: Sequence[Client]) -> Iterator[Result]:
        """In the order of the clients; one result more than there are workers may wait to be taken."""
        pool = self._shares.pool
        if pool is None:
            yield from map(work, clients)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for client in clients:
                waiting.append(pool.submit(work, client))
                if len(waiting) > self._shares.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
