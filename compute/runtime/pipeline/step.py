"""A step whose layers several processes share: cut by what its operators cost on this machine."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from coterie.compute.ir import NDArray
from coterie.compute.onnx.pipeline.cut import Cut, cut, turns
from coterie.compute.onnx.pipeline.micro import MicroStep, micro_step
from coterie.compute.onnx.spread.stages import Bound
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.pipeline.layout import PipelineLayout
from coterie.compute.runtime.pipeline.operator_times import OperatorTimes
from coterie.compute.runtime.spread.shared import Layout
from coterie.compute.runtime.tensors import TensorInfo


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """A step that is cut for the stages of a pipeline, each of which has its own part of the weights."""

    data: bytes
    threads: int
    cut: Cut

    @staticmethod
    def of(
        case: StepCase, *, batch: Collection[str], processes: int, threads: int, times: OperatorTimes
    ) -> "PipelineStep":
        """The step of a case, cut where its measured operators say.

        batch: the inputs that are one of each row, but for the weight of the rows. threads: of each process. times:
        remembers what operators cost. Raises InputError (``not_spreadable``) for a step that mixes rows, needs sums of
        the whole batch on the way, or has too few layers or rows.
        """
        micro = micro_step(case.data, batch=batch, processes=processes)
        seconds = times.of(micro.each[0].data, lambda: _feeds(micro, case), threads)
        kept = {*case.carry.values(), *case.constants}
        return PipelineStep(data=case.data, threads=threads, cut=cut(micro, case.carry, kept, seconds, processes))

    @property
    def processes(self) -> int:
        """How many stages there are."""
        return self.cut.processes

    @property
    def parted(self) -> bool:
        """Each process only touches its own weights, state and activations."""
        return True

    @property
    def meetings(self) -> int:
        """How often the processes meet in a step before its end."""
        return turns(self.cut.begin) + self.cut.ticks + turns(self.cut.end) - 1

    def layout(self, carry: Mapping[str, str], inputs: Mapping[str, TensorInfo]) -> Layout:
        """See ``SharedStep``."""
        return PipelineLayout(self.cut, self.threads, carry, inputs)


def _feeds(micro: MicroStep, case: StepCase) -> dict[str, NDArray]:
    """What the first micro-batch of the case's step reads."""
    known = {**case.feeds, **case.constants, **case.state}

    def read(bound: Bound) -> NDArray:
        held = known[bound.tensor].reshape(-1)
        return held[bound.start : bound.start + prod(bound.shape)].reshape(bound.shape)

    if micro.before.data:
        known |= Executable(micro.before.data).run({bound.name: read(bound) for bound in micro.before.inputs})
    return {bound.name: read(bound) for bound in micro.each[0].inputs}
