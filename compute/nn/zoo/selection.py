"""Choosing a model by what a device can bear."""

from dataclasses import dataclass
from typing import Protocol

from coterie.compute.nn.module import Module
from coterie.compute.nn.zoo.cost import Cost, Costs, recorded
from coterie.compute.nn.zoo.limits import Limits, measures
from coterie.compute.nn.zoo.table import Entry, Task, entries
from coterie.errors import ArgumentTypeError, ArgumentValueError, ConfigurationError


class Report(Protocol):
    """What a device says of itself: ``coterie.protocol.device.Capabilities`` is one.

    yardstick_us: microseconds of the yardstick's inference there (``compute.runtime.yardstick``); None where it was not
    measured. memory_bytes: the most that a task may take; None for no limit.
    """

    @property
    def yardstick_us(self) -> float | None: ...

    @property
    def memory_bytes(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model of the task. cost: on the device. accuracy: on the task's data. misses: the limits that it does not keep,
    in words; none for a model that fits.
    """

    entry: Entry
    cost: Cost
    accuracy: float
    misses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen model and why. candidates: all models of the task, the most accurate first."""

    entry: Entry
    cost: Cost
    accuracy: float
    candidates: tuple[Candidate, ...]

    def build(self) -> Module:
        """The model."""
        return self.entry.build()

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("model", "accuracy", "latency ms", "step ms", "size MB", "memory MB", "")]
        for one in self.candidates:
            why = "chosen" if one.entry is self.entry else ", ".join(one.misses)
            rows.append((one.entry.name, f"{one.accuracy:.3f}", *_shown(one.cost), why))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


def select(
    *,
    task: Task,
    latency_ms: float | None = None,
    step_ms: float | None = None,
    size_mb: float | None = None,
    memory_mb: float | None = None,
    device: Report | None = None,
    costs: Costs | None = None,
) -> Choice:
    """The most accurate model of a task that keeps all limits; of equally accurate ones the fastest.

    latency_ms: of one inference. step_ms: of a training step of 32 examples. size_mb: of the inference file, in units
    of 10⁶ bytes. memory_mb: of a training step. device: where the model shall run: its memory is a limit too, and times
    are those of the table times (the device's yardstick / the table's). costs: what the models cost; the recorded table
    unless given. Without a device the times are those of the table's machine.

    Guarantees: the chosen model keeps every limit by these figures, and no other model that does is at least as
    accurate, fast and small and better in one of them. A time on another machine is an estimate by one ratio: machines
    differ in more than speed, so measure before promising (``coterie.compute.training.measure``).

    Raises ArgumentValueError for a task that is not there, a limit that is not above 0, or where no model keeps the
    limits (naming what each would need); ArgumentTypeError for a device that is no report; ConfigurationError for one
    that did not measure its yardstick, or says that it takes no time.
    """
    table = recorded() if costs is None else costs
    asked = Limits(latency_ms=latency_ms, step_ms=step_ms, size_mb=size_mb, memory_mb=memory_mb)
    if device is not None and not (hasattr(device, "yardstick_us") and hasattr(device, "memory_bytes")):
        raise ArgumentTypeError(
            f"device is of type {type(device).__name__}, which has no yardstick_us and memory_bytes.",
            hint="Give a device's capabilities: coterie.protocol.device.Capabilities.",
        )
    limits = asked if device is None else asked.within(device.memory_bytes)
    factor = 1.0 if device is None else _factor(device, table)
    known = [(entry, *table.models[task, entry.name]) for entry in entries(task) if (task, entry.name) in table.models]
    if not known:
        raise ArgumentValueError(
            f"The table of costs has no model of the zoo for {task}.", hint="Measure them: benchmarks/zoo.py."
        )
    rows = [(entry, cost.scaled(factor), accuracy) for entry, cost, accuracy in known]
    candidates = tuple(
        Candidate(entry=entry, cost=cost, accuracy=accuracy, misses=limits.misses(cost))
        for entry, cost, accuracy in sorted(rows, key=lambda row: (-row[2], row[1].latency_us, row[1].size_bytes))
    )
    for one in candidates:
        if not one.misses:
            return Choice(entry=one.entry, cost=one.cost, accuracy=one.accuracy, candidates=candidates)
    raise ArgumentValueError(
        f"No model of the zoo for {task} keeps {limits}: "
        + "; ".join(f"{one.entry.name} has {', '.join(one.misses)}" for one in candidates)
        + ".",
        hint="Raise a limit, or search for a smaller model with zoo.search.",
    )


def _factor(device: Report, table: Costs) -> float:
    """How many times longer than on the table's machine things take on the device."""
    if device.yardstick_us is None or not device.yardstick_us > 0:
        raise ConfigurationError(
            f"The device's report has yardstick_us {device.yardstick_us}, so nothing is known of its speed.",
            hint="Update the device's SDK, or measure there: coterie.compute.runtime.yardstick.yardstick_us().",
        )
    return device.yardstick_us / table.yardstick_us


def _shown(cost: Cost) -> tuple[str, ...]:
    return tuple(f"{value:.3g}" for value in measures(cost).values())
