"""A pipeline run in one process: what each of its processes has to do between two meetings, one after the other."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.pipeline.operator_times import OperatorTimes
from coterie.compute.runtime.pipeline.step import PipelineStep
from coterie.compute.runtime.spread.memory import SharedMemory
from coterie.compute.runtime.spread.program import Stages
from coterie.compute.runtime.unread import inputs_of

Arrays = Mapping[str, NDArray[Any]]


class InTurn:
    """The step, loaded. Processes see nothing of one another but what lies in the memory that they share.

    reverse: the last process first, between each two meetings.
    """

    def __init__(self, case: StepCase, *, batch: Collection[str], processes: int, reverse: bool = False) -> None:
        self.step = PipelineStep.of(case, batch=batch, processes=processes, threads=1, times=OperatorTimes())
        self._carry, self._turn, self._reverse = case.carry, 0, reverse
        self.layout = self.step.layout(case.carry, {info.name: info for info in inputs_of(case.data)})
        self._memory = SharedMemory.made(self.layout.size)
        self._stages = [Stages(program, self._memory) for program in self.layout.programs()]

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """The step's results for these inputs, state included."""
        reads, writes = self.layout.inputs[self._turn], self.layout.inputs[1 - self._turn]
        for name, value in feeds.items():
            np.copyto(self._memory.array(reads[name]), value)
        for stage in range(len(self._stages[0])):
            for stages in reversed(self._stages) if self._reverse else self._stages:
                stages.run(stage, self._turn)
        places = {**self.layout.results, **{output: writes[name] for output, name in self._carry.items()}}
        self._turn = 1 - self._turn
        return {name: self._memory.array(view).copy() for name, view in places.items()}
