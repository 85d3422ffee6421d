"""What one process runs in a step: a graph for each stage, and the memory that the graph reads and writes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.session import Binding, ortvalue_over
from coterie.compute.runtime.spread.memory import SharedMemory, View

Bindings = dict[str, View]


@dataclass(frozen=True)
class Turn:
    """Where a graph reads and writes; every other step it is the other way round."""

    inputs: Bindings
    outputs: Bindings


@dataclass(frozen=True)
class Run:
    """graph: which of the program's. turns: of the steps with an even and an odd number."""

    graph: int
    turns: tuple[Turn, Turn]


@dataclass(frozen=True)
class Program:
    """graphs: of one process. stages: what it runs of them, one after the other, between two meetings. arena: see
    ``Executable``.
    """

    graphs: tuple[bytes, ...]
    stages: tuple[tuple[Run, ...], ...]
    threads: int
    arena: bool = True

    def messages(self) -> list[bytes]:
        """The program as messages: one of JSON, and then the graphs."""
        told = [[[run.graph, *map(_told, run.turns)] for run in runs] for runs in self.stages]
        head = {"threads": self.threads, "arena": self.arena, "graphs": len(self.graphs), "stages": told}
        return [json.dumps(head).encode(), *self.graphs]

    @staticmethod
    def read(receive: Callable[[], bytes]) -> "Program":
        """The program of these messages. receive: gives the next one."""
        head: dict[str, Any] = json.loads(receive())
        stages = tuple(
            tuple(Run(int(graph), (_heard(first), _heard(second))) for graph, first, second in runs)
            for runs in head["stages"]
        )
        graphs = tuple(receive() for _ in range(int(head["graphs"])))
        return Program(graphs, stages, int(head["threads"]), bool(head["arena"]))


def _told(turn: Turn) -> list[dict[str, Any]]:
    return [
        {name: [view.offset, list(view.shape), view.dtype] for name, view in group.items()}
        for group in (turn.inputs, turn.outputs)
    ]


def _heard(told: list[dict[str, Any]]) -> Turn:
    inputs, outputs = (
        {name: View(int(offset), tuple(map(int, shape)), str(dtype)) for name, (offset, shape, dtype) in group.items()}
        for group in told
    )
    return Turn(inputs, outputs)


class Stages:
    """A program that is loaded. Raises GraphRefused where ONNX Runtime does not take a graph."""

    def __init__(self, program: Program, memory: SharedMemory) -> None:
        self._loaded = [Executable(data, threads=program.threads, arena=program.arena) for data in program.graphs]
        self._stages = [[self._bound(run, memory) for run in runs] for runs in program.stages]

    def __len__(self) -> int:
        return len(self._stages)

    def run(self, stage: int, turn: int) -> None:
        """Run one stage."""
        for executable, bindings in self._stages[stage]:
            executable.session.run_with_iobinding(bindings[turn])

    def _bound(self, run: Run, memory: SharedMemory) -> tuple[Executable, tuple[Binding, Binding]]:
        executable = self._loaded[run.graph]
        even, odd = run.turns
        first = _bound(executable, even, memory)
        return executable, (first, first if even == odd else _bound(executable, odd, memory))


def _bound(executable: Executable, turn: Turn, memory: SharedMemory) -> Binding:
    binding = executable.session.io_binding()
    for name, view in turn.inputs.items():
        binding.bind_ortvalue_input(name, ortvalue_over(memory.array(view)))
    for name, view in turn.outputs.items():
        binding.bind_ortvalue_output(name, ortvalue_over(memory.array(view)))
    return binding
