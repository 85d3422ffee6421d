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
class Stage:
    """data: the graph; b"" where there is nothing to run. turns: of the steps with an even and an odd number."""

    data: bytes
    turns: tuple[Turn, Turn]


@dataclass(frozen=True)
class Program:
    """The stages of one process, between which it meets the others."""

    stages: tuple[Stage, ...]
    threads: int

    def messages(self) -> list[bytes]:
        """The program as messages: one of JSON, and then the graphs."""
        told = [[_told(turn) for turn in stage.turns] for stage in self.stages]
        head = json.dumps({"threads": self.threads, "stages": told}).encode()
        return [head, *(stage.data for stage in self.stages)]

    @staticmethod
    def read(receive: Callable[[], bytes]) -> "Program":
        """The program of these messages. receive: gives the next one."""
        head: dict[str, Any] = json.loads(receive())
        stages: list[Stage] = []
        for first, second in head["stages"]:
            stages.append(Stage(receive(), (_heard(first), _heard(second))))
        return Program(tuple(stages), int(head["threads"]))


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
        self._runs: list[tuple[Executable, tuple[Binding, Binding]] | None] = []
        for stage in program.stages:
            if not stage.data:
                self._runs.append(None)
                continue
            executable = Executable(stage.data, threads=program.threads)
            first, second = (_bound(executable, turn, memory) for turn in stage.turns)
            self._runs.append((executable, (first, second)))

    def __len__(self) -> int:
        return len(self._runs)

    def run(self, stage: int, turn: int) -> None:
        """Run one stage."""
        loaded = self._runs[stage]
        if loaded is not None:
            executable, bindings = loaded
            executable.session.run_with_iobinding(bindings[turn])


def _bound(executable: Executable, turn: Turn, memory: SharedMemory) -> Binding:
    binding = executable.session.io_binding()
    for name, view in turn.inputs.items():
        binding.bind_ortvalue_input(name, ortvalue_over(memory.array(view)))
    for name, view in turn.outputs.items():
        binding.bind_ortvalue_output(name, ortvalue_over(memory.array(view)))
    return binding
