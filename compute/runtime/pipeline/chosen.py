"""The step as it was asked to be shared: by rows, or by layers."""

from collections.abc import Collection

from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.pipeline.operator_times import OperatorTimes
from coterie.compute.runtime.pipeline.step import PipelineStep
from coterie.compute.runtime.spread.asked import Parallel
from coterie.compute.runtime.spread.loop import SpreadStep
from coterie.compute.runtime.spread.shared import SharedStep


def cut_as_asked(
    asked: Parallel, case: StepCase, *, batch: Collection[str], threads: int, times: OperatorTimes
) -> SharedStep:
    """The step of a case, cut for the processes.

    batch: the inputs that are one of each row, but for the weight of the rows. threads: of each process. times:
    remembers what operators cost. Raises InputError (``not_spreadable``).
    """
    if asked.layers:
        return PipelineStep.of(case, batch=batch, processes=asked.processes, threads=threads, times=times)
    return SpreadStep.cut(case.data, batch=batch, processes=asked.processes, threads=threads)
