"""A step loop whose steps several processes share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.onnx.spread.stages import Bound, Staged, staged
from coterie.compute.onnx.spread.writing import StageGraph, stage_graph
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.compute.runtime.spread.memory import Places, SharedMemory, View
from coterie.compute.runtime.spread.program import Bindings, Program, Run, Turn
from coterie.compute.runtime.spread.shared import Layout, SharedStep
from coterie.compute.runtime.spread.team import Team
from coterie.compute.runtime.tensors import TensorInfo, check_names
from coterie.compute.runtime.unread import inputs_of
from coterie.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SpreadStep:
    """A step that is cut for processes, each of which works on a part of the rows.

    graphs: by process, those of its stages.
    """

    data: bytes
    processes: int
    threads: int
    graphs: tuple[tuple[StageGraph, ...], ...]
    step: Staged

    @staticmethod
    def cut(data: bytes, *, batch: Collection[str], processes: int, threads: int) -> "SpreadStep":
        """A serialised step, cut.

        batch: the inputs that are one of each row, but for the weight of the rows, which each process gets whole.
        threads: of each process. Raises InputError (``not_spreadable``) for a step that mixes rows, or that has too few
        for so many processes.
        """
        step = staged(data, batch=batch, processes=processes)
        graphs = tuple(
            tuple(stage_graph(step, stage, rank) for stage in range(step.count)) for rank in range(processes)
        )
        return SpreadStep(data=data, processes=processes, threads=threads, graphs=graphs, step=step)

    @property
    def parted(self) -> bool:
        """Each process reads all the weights."""
        return False

    def layout(self, carry: Mapping[str, str], inputs: Mapping[str, TensorInfo]) -> Layout:
        """See ``SharedStep``."""
        return _Layout(self, carry, inputs)

    @property
    def meetings(self) -> int:
        """How often the processes meet in a step before its end."""
        return self.step.count - 1


class SpreadLoop:
    """A ``StepLoop`` over a step that several processes share, with the same methods.

    Of a ``SpreadStep`` each process has a part of the rows: it runs the model forward and backward on them. What sums
    over rows it has a part of; when all have theirs, each adds up the parts, of a large tensor a stretch alone. That
    stretch of the weights and of the optimizer's state it then moves by itself, so an update is made once and not by
    each. Of a ``PipelineStep`` each has a part of the layers.

    Guarantees: the same state as a ``StepLoop`` up to the rounding of sums that are made in another order, and the same
    bits as another loop with as many processes and threads. The others hold nothing of value, and end with this
    process, however it ends. Raises what ``StepLoop`` raises, and ProcessLost.
    """

    def __init__(
        self,
        spread: SharedStep,
        *,
        carry: Mapping[str, str],
        constants: Mapping[str, NDArray],
        state: Mapping[str, NDArray],
    ) -> None:
        self.spread = spread
        self._carry = dict(carry)
        self._inputs = {info.name: info for info in inputs_of(spread.data)}
        carried = set(carry.values())
        layout = spread.layout(carry, self._inputs)
        memory = SharedMemory.made(layout.size)
        self._memory = memory
        try:
            self._team = Team(layout.programs(), memory)
        finally:
            memory.forget()
        arrays = [{name: memory.array(view) for name, view in turn.items()} for turn in layout.inputs]
        self._states = tuple({name: turn[name] for name in carried} for turn in arrays)
        self._constants = {name: array for name, array in arrays[0].items() if name in constants}
        self._feeds = {
            name: array for name, array in arrays[0].items() if name not in carried and name not in constants
        }
        self._results = {name: memory.array(view) for name, view in layout.results.items()}
        check_names(self._constants, constants, where="step loop constants")
        self.load(state, constants=constants)

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the step, by name."""
        return self._inputs

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given."""
        return tuple(self._inputs[name] for name in self._feeds)

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the other processes."""
        return self._team.processes

    @property
    def closed(self) -> bool:
        """Whether the other processes have been ended."""
        return self._team.closed

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state``; see ``StepLoop.load``."""
        self._write(self._states[self._team.turn], state, where="step loop state")
        if constants is not None:
            self._write(self._constants, constants, where="step loop constants")
        self._release()

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once in all processes. An error ends the others, and with them this loop."""
        self._write(self._feeds, feeds, where="step")
        self._team.step()

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs; see ``StepLoop.read``."""
        wanted = (names,) if isinstance(names, str) else names
        return {name: self._output(name).copy() for name in wanted}

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        found = {name: array.copy() for name, array in self._states[self._team.turn].items()}
        self._release()
        return found

    def close(self) -> None:
        """End the other processes. State and results can still be read."""
        self._team.close()

    def __del__(self) -> None:
        if hasattr(self, "_team"):
            self._team.close()

    def _release(self) -> None:
        if self.spread.parted:
            self._memory.release()

    def _output(self, name: str) -> NDArray:
        carried = self._carry.get(name)
        found = self._results.get(name) if carried is None else self._states[self._team.turn][carried]
        if found is None:
            raise InputError(f"read: the graph has no output {name!r}.")
        return found

    def _write(self, arrays: Mapping[str, NDArray], values: Mapping[str, NDArray], *, where: str) -> None:
        check_names(arrays, values, where=where)
        for name in arrays:
            self._inputs[name].check(values[name], where=where)
        for name, array in arrays.items():
            np.copyto(array, values[name])


class _Layout:
    """Where every tensor of the step lies. inputs: of even and of odd steps, which read what the others write."""

    def __init__(self, spread: SpreadStep, carry: Mapping[str, str], known: Mapping[str, TensorInfo]) -> None:
        self._spread, self._carry = spread, carry
        self._places = Places()
        lying = _lying(spread, carry)
        first = {name: self._places.take(info.shape, info.dtype) for name, info in known.items()}
        second = dict(first)
        for name in set(carry.values()) - lying:
            second[name] = self._places.take(known[name].shape, known[name].dtype)
        self.inputs: tuple[Bindings, Bindings] = (first, second)
        graph = spread.step.graph
        self.results: Bindings = {
            name: self._places.take(graph.shapes[name], graph.dtype(name).name)
            for name in graph.outputs
            if name not in carry
        }
        self._own: dict[tuple[str, int], View] = {}
        for rank, graphs in enumerate(spread.graphs):
            for bound in (bound for stage in graphs for bound in stage.outputs if bound.home == "own"):
                self._own[bound.tensor, rank] = self._places.take(bound.shape, bound.dtype)

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return self._places.size

    def programs(self) -> list[Program]:
        """Of each process."""
        return [self._program(graphs) for graphs in self._spread.graphs]

    def _program(self, graphs: Sequence[StageGraph]) -> Program:
        full = [stage for stage in graphs if stage.data]
        stages = tuple(
            (Run(full.index(stage), (self._turn(stage, 0), self._turn(stage, 1))),) if stage.data else ()
            for stage in graphs
        )
        return Program(tuple(stage.data for stage in full), stages, self._spread.threads)

    def _turn(self, stage: StageGraph, turn: int) -> Turn:
        return Turn(
            {bound.name: self._view(bound, turn) for bound in stage.inputs},
            {bound.name: self._view(bound, turn) for bound in stage.outputs},
        )

    def _view(self, bound: Bound, turn: int) -> View:
        match bound.home:
            case "own":
                place = self._own[bound.tensor, bound.rank]
            case "input":
                place = self.inputs[turn][bound.tensor]
            case "output" if bound.tensor in self._carry:
                place = self.inputs[1 - turn][self._carry[bound.tensor]]
            case "output":
                place = self.results[bound.tensor]
        return View(place.offset + bound.start * np.dtype(bound.dtype).itemsize, bound.shape, bound.dtype)


def _lying(spread: SpreadStep, carry: Mapping[str, str]) -> set[str]:
    """State of which each process moves a stretch where it lies: nobody else reads that stretch meanwhile, and the
    stage that writes it reads it at the same places first.
    """
    found: set[str] | None = None
    for graphs in spread.graphs:
        last = graphs[-1]
        if not last.data:
            return set()
        own = {bound.name: bound.tensor for bound in last.outputs if bound.home == "output" and bound.tensor in carry}
        read = {bound.tensor: bound.name for bound in last.inputs if bound.home == "input"}
        doubled = _twice([bound.tensor for bound in last.inputs])
        into = {
            name: read[carry[tensor]]
            for name, tensor in own.items()
            if carry[tensor] in read and carry[tensor] not in doubled
        }
        flat = {name: taken for name, taken in into.items() if taken.endswith("/flat")}
        names = {taken: tensor for tensor, taken in read.items()}
        proven = {names[taken] for taken in stepped_in_place(last.data, flat)}
        found = proven if found is None else found & proven
    return found or set()


def _twice(names: Sequence[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
