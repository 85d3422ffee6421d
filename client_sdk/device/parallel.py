"""The processes that share a device's training: how many for each plan, and what the owner is told of it."""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal, TypeAlias

from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.pipeline.chosen import cut_as_asked
from coterie.compute.runtime.pipeline.operator_times import OperatorTimes
from coterie.compute.runtime.spread.asked import Parallel
from coterie.compute.runtime.spread.choice import pays, shared_loop
from coterie.compute.runtime.spread.loop import SpreadLoop
from coterie.compute.runtime.spread.shared import SharedStep
from coterie.compute.runtime.spread.team import ProcessLost
from coterie.errors import CoterieError

# A cut holds each graph of the plan's step a few times, and its places.
KEPT_PLANS = 4

ParallelState: TypeAlias = Literal["chosen", "refused", "lost"]


@dataclass(frozen=True, kw_only=True)
class ParallelNews:
    """Something that the owner of the device is told.

    processes: how many share the steps from here on.
    layers: whether each of them has a part of the layers, and not of the rows.
    seconds: of one step, by the number of processes, where it was measured.
    """

    state: ParallelState
    processes: int
    layers: bool = False
    reason: str = ""
    seconds: Mapping[str, float] | None = None


class DeviceParallel:
    """What a plan trainer asks whether it shares the steps of a plan. May be used from several threads.

    asked: by the device's owner. times: remembers what operators cost on this machine. What happened is collected;
    ``news`` hands it over. Of the plans that were asked for last, ``KEPT_PLANS``, the choice is kept.
    """

    def __init__(self, asked: Parallel, times: OperatorTimes | None = None) -> None:
        self._asked, self._times = asked, times or OperatorTimes()
        # A choice starts processes, so whoever only puts some back does not wait for it.
        self._choosing, self._lock = Lock(), Lock()
        self._chosen: dict[str, SharedStep | None] = {}
        self._news: deque[ParallelNews] = deque()
        self._lost = False
        # Processes take memory while they wait, so only those of the last plan do.
        self._spare: SpreadLoop | None = None

    def news(self) -> list[ParallelNews]:
        """What has happened since this was asked last."""
        return [self._news.popleft() for _ in range(len(self._news))]

    @property
    def is_measured(self) -> bool:
        """Whether processes share steps only where that turns out quicker."""
        return self._asked.measured

    def choose(
        self, plan: str, case: Callable[[], StepCase], *, batch: frozenset[str], threads: int
    ) -> SharedStep | None:
        """The step of a plan, cut for the processes; None where one process makes it: for a plan that cannot be
        shared so, where it was measured not to pay, and after a process was lost.

        case: the plan's first step.
        batch: its inputs that are cut by rows.
        """
        if self._asked.processes < 2 or self._lost:
            return None
        with self._choosing:
            found = self._chosen.pop(plan) if plan in self._chosen else self._cut(case(), batch, threads)
            self._chosen[plan] = found
            while len(self._chosen) > KEPT_PLANS:
                del self._chosen[next(iter(self._chosen))]
            return found

    @contextmanager
    def loop(self, case: StepCase, spread: SharedStep) -> Generator[SpreadLoop]:
        """A step loop whose steps the processes share, of which nobody else has hold.

        case: the state and the constants that it begins with. Raises ProcessLost where a process ends in the middle of
        the training: from there on there is one.
        """
        loop = self._take()
        if loop is not None and loop.spread is not spread:
            loop.close()
            loop = None
        try:
            if loop is None:
                loop = shared_loop(case, spread)
            else:
                loop.load(case.state, constants=case.constants)
            yield loop
        except BaseException as error:
            if loop is not None:
                loop.close()
            if isinstance(error, ProcessLost):
                self._lost = True
                self._news.append(ParallelNews(state="lost", processes=1, reason=error.message))
            raise
        self._keep(loop)

    def close(self) -> None:
        """End the processes that wait for the next training."""
        self._keep(None)

    def _take(self) -> SpreadLoop | None:
        with self._lock:
            spare, self._spare = self._spare, None
        return spare

    def _keep(self, loop: SpreadLoop | None) -> None:
        with self._lock:
            spare, self._spare = self._spare, loop
        if spare is not None:
            spare.close()

    def _cut(self, case: StepCase, batch: frozenset[str], threads: int) -> SharedStep | None:
        count = self._asked.processes
        try:
            spread = cut_as_asked(self._asked, case, batch=batch, threads=threads, times=self._times)
            good, seconds = pays(case, spread) if self._asked.measured else (True, None)
            if good:
                # Processes that do not start are known before the plan counts on them.
                self._keep(shared_loop(case, spread))
        except CoterieError as error:
            self._news.append(ParallelNews(state="refused", processes=1, reason=error.message))
            return None
        self._news.append(
            ParallelNews(
                state="chosen", processes=count if good else 1, layers=self._asked.layers and good, seconds=seconds
            )
        )
        return spread if good else None
