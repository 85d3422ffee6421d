"""Whether several processes make a step sooner than one: measured on the step itself."""

import time
from collections.abc import Callable
from statistics import median

from coterie.compute.runtime.choice import ADVANTAGE, StepCase
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.spread.loop import SpreadLoop
from coterie.compute.runtime.spread.shared import SharedStep

WARMED, STEPS, LONGEST_S = 3, 15, 1.0


def shared_loop(case: StepCase, spread: SharedStep) -> SpreadLoop:
    """A loop over the step of a case, which processes share."""
    return SpreadLoop(spread, carry=case.carry, constants=case.constants, state=case.state)


def pays(
    case: StepCase, spread: SharedStep, *, clock: Callable[[], float] = time.perf_counter
) -> tuple[bool, dict[str, float]]:
    """Whether processes that share the steps need less than ``ADVANTAGE`` of one's time; and the seconds of a step.

    Takes at most about a second for each, and the time to start them. Raises ProcessLost.
    """
    alone = case.whole(Executable(case.data, threads=spread.threads))
    shared = shared_loop(case, spread)
    try:
        one, several = (_seconds(loop.step, case, clock) for loop in (alone, shared))
    finally:
        shared.close()
    return several < ADVANTAGE * one, {"1": one, str(spread.processes): several}


def _seconds(step: Callable[..., None], case: StepCase, clock: Callable[[], float]) -> float:
    """The median of some steps: all the processes have to be there for one, which the quickest of them hides."""
    found: list[float] = []
    begun = clock()
    for _ in range(WARMED + STEPS):
        before = clock()
        step(case.feeds)
        found.append(clock() - before)
        if len(found) > WARMED and clock() - begun > LONGEST_S:
            break
    return median(found[WARMED:])
