"""Where the tensors of a pipeline lie, and what each process runs between two meetings.

At meeting t the piece c of the micro-batch t - c is made: each process has one piece forward and one backward, of two
micro-batches, so that all of them work as soon as the pipeline is full. A tensor on its way from one piece to another
has as many places as there are micro-batches between them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.compute.onnx.pipeline.cut import Cut, Piece, before, sum_name, turns
from coterie.compute.onnx.pipeline.duties import Duty
from coterie.compute.onnx.spread.stages import Bound
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.compute.runtime.spread.memory import Places, View
from coterie.compute.runtime.spread.program import Bindings, Program, Run, Turn
from coterie.compute.runtime.tensors import TensorInfo


@dataclass
class _Graphs:
    """The graphs of one process: each is loaded once, however often it is run."""

    known: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def number(self, data: bytes) -> int:
        return self.known.setdefault(data, len(self.known))


class PipelineLayout:
    """See ``Layout``."""

    def __init__(self, cut: Cut, threads: int, carry: Mapping[str, str], known: Mapping[str, TensorInfo]) -> None:
        self._cut, self._threads, self._carry = cut, threads, carry
        self._bounds = {bound.name: bound for graph in (cut.micro.before, cut.micro.after) for bound in graph.inputs}
        self._places = Places()
        self.inputs: tuple[Bindings, Bindings] = self._inputs(known)
        step = cut.micro.step
        self.results: Bindings = {
            name: self._places.take(step.shapes[name], step.dtype(name).name)
            for name in step.outputs
            if name not in carry
        }
        self._slots = {
            name: [self._places.take(each.shape, each.dtype) for _ in range(each.copies)]
            for name, each in cut.crossings.items()
        }
        self._handed = self._handed_places()
        self._sums = self._sum_places()

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return self._places.size

    def programs(self) -> list[Program]:
        """Of each process."""
        return [self._program(process) for process in range(self._cut.processes)]

    def _program(self, process: int) -> Program:
        graphs = _Graphs()
        stages = [
            *self._turns(self._cut.begin, process, graphs),
            *(tuple(self._tick(process, tick, graphs)) for tick in range(self._cut.ticks)),
            *self._turns(self._cut.end, process, graphs),
        ]
        # Each of its graphs would keep the memory of its largest gradient, which only one of them needs at a time.
        return Program(tuple(graphs.known), tuple(stages), self._threads, arena=False)

    def _turns(self, made: Sequence[Duty], process: int, graphs: _Graphs) -> Iterator[tuple[Run, ...]]:
        for turn in range(turns(made)):
            own = [duty for duty in made if (duty.turn, duty.process) == (turn, process)]
            yield tuple(Run(graphs.number(duty.data), self._duty(duty)) for duty in own)

    def _tick(self, process: int, tick: int, graphs: _Graphs) -> Iterator[Run]:
        cut = self._cut
        for piece in sorted({2 * cut.processes - 2 - process, process}, reverse=True):
            number = tick - piece
            if 0 <= number < len(cut.pieces) and cut.pieces[number][piece].data:
                made = cut.pieces[number][piece]
                yield Run(graphs.number(made.data), self._piece(made, number))

    def _piece(self, piece: Piece, number: int) -> tuple[Turn, Turn]:
        """What a piece reads and writes of one micro-batch."""
        bounds = {bound.name: bound for bound in self._cut.micro.each[number].inputs}

        def slot(name: str) -> View:
            places = self._slots[name]
            return places[number % len(places)]

        turns: list[Turn] = []
        for turn in (0, 1):
            inputs = {name: self._view(bounds[name], turn) if name in bounds else slot(name) for name in piece.inputs}
            outputs = {name: slot(name) for name in piece.outputs}
            for name in piece.sums:
                place = outputs[sum_name(name, more=number > 0)] = self._sum(name, turn)
                if number:
                    inputs[before(name)] = place
            turns.append(Turn(inputs, outputs))
        return turns[0], turns[1]

    def _duty(self, duty: Duty) -> tuple[Turn, Turn]:
        """What a duty reads and writes."""
        even, odd = (
            Turn(
                {
                    name: self._view(self._bounds[name], turn) if name in self._bounds else self._made(name, turn)
                    for name in duty.inputs
                },
                {name: self._made(name, turn) for name in duty.outputs},
            )
            for turn in (0, 1)
        )
        return even, odd

    def _made(self, name: str, turn: int) -> View:
        """Where a tensor of a duty is written."""
        if name in self._handed:
            return self._handed[name]
        return self.inputs[1 - turn][self._carry[name]] if name in self._carry else self.results[name]

    def _sum(self, name: str, turn: int) -> View:
        """Where the micro-batches add to a sum. In a piece that has the sum of those before, only the addition at its
        end reads that, number by number: so it is done where the sum lies.
        """
        return self._sums[name] if name in self._sums else self._made(name, turn)

    def _view(self, bound: Bound, turn: int) -> View:
        """Where an input lies: the step's, what is the same for all micro-batches, or a sum of all of them."""
        if bound.home == "input":
            place = self.inputs[turn][bound.tensor]
        elif bound.tensor in self._cut.places:
            place = self._sum(bound.tensor, turn)
        else:
            place = self._handed[bound.tensor]
        return View(place.offset + bound.start * np.dtype(bound.dtype).itemsize, bound.shape, bound.dtype)

    def _inputs(self, known: Mapping[str, TensorInfo]) -> tuple[Bindings, Bindings]:
        lying = self._lying()
        first = {name: self._places.take(info.shape, info.dtype) for name, info in known.items()}
        second = {
            name: self._places.take(known[name].shape, known[name].dtype)
            for name in dict.fromkeys(self._carry.values())
            if name not in lying
        }
        return first, {**first, **second}

    def _lying(self) -> set[str]:
        """State that is moved where it lies: no other duty reads it, and the one that moves it reads it first."""
        found = set[str]()
        readers = [name for duty in self._cut.end for name in duty.inputs]
        for duty in self._cut.end:
            own = {
                name: self._carry[name]
                for name in duty.outputs
                if self._carry.get(name) in duty.inputs and readers.count(self._carry[name]) == 1
            }
            found |= stepped_in_place(duty.data, own)
        return found

    def _sum_places(self) -> dict[str, View]:
        """Of the sums that are no results of the step, which have places of their own."""
        step = self._cut.micro.step
        return {
            name: self._places.take(step.shapes[name], step.dtype(name).name)
            for name in self._cut.places
            if name not in step.outputs
        }

    def _handed_places(self) -> dict[str, View]:
        """What duties make for other duties, and for the micro-batches."""
        step, found = self._cut.micro.step, dict[str, View]()
        for duty in (*self._cut.begin, *self._cut.end):
            for name in duty.outputs:
                if name not in step.outputs:
                    found[name] = self._places.take(step.shapes[name], step.dtype(name).name)
        return found
