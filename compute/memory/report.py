"""What a graph needs in memory, under each planner and by the user's line."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.compute.ir import Graph, require_graph
from coterie.compute.memory.in_place import in_place
from coterie.compute.memory.lifetimes import Block, levels, lifetimes, lower_bound
from coterie.compute.memory.planners import ALIGNMENT, PLANNERS

_LINES = 12  # of the table by line


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes that one run of a graph needs, its inputs, outputs and constants included.

    peaks: the size of the arena under each planner. The last two write elementwise results over operands that end
    there. lower_bound and lower_bound_in_place: what is live at the fullest step, without and with that.
    held: inputs, constants and outputs. lines: what is live at the fullest step (in place) by the user's line or the
    name of the input, the largest first.
    """

    peaks: Mapping[str, int]
    lower_bound: int
    lower_bound_in_place: int
    held: int
    lines: tuple[tuple[str, int], ...]

    @property
    def peak(self) -> int:
        """The smallest arena found."""
        return min(self.peaks.values())

    def __str__(self) -> str:
        rows = [
            *self.peaks.items(),
            ("lower bound", self.lower_bound),
            ("lower bound in place", self.lower_bound_in_place),
            ("inputs, constants, outputs", self.held),
        ]
        shown = self.lines[:_LINES]
        rest = self.lines[_LINES:]
        if rest:
            shown = (*shown, (f"{len(rest)} more", sum(size for _, size in rest)))
        width = max(len(name) for name, _ in (*rows, *shown))
        lines = [f"{name:<{width}} {size:>14,} B" for name, size in rows]
        lines += ["", "live at the fullest step"]
        return "\n".join(lines + [f"{name:<{width}} {size:>14,} B" for name, size in shown])


def memory_report(graph: Graph, alignment: int = ALIGNMENT) -> MemoryReport:
    """The report of a graph, run node by node in its order. Print it for a table."""
    require_graph("memory_report", graph)
    plain = lifetimes(graph)
    merged = lifetimes(graph, in_place(graph))
    peaks = {name: plan(plain, alignment).bytes for name, plan in PLANNERS.items()}
    peaks |= {
        f"{name} in place": plan(merged, alignment).bytes for name, plan in PLANNERS.items() if name != "no reuse"
    }
    return MemoryReport(
        peaks=peaks,
        lower_bound=lower_bound(plain),
        lower_bound_in_place=lower_bound(merged),
        held=sum(block.bytes for block in plain if block.kind == "held"),
        lines=_by_line(merged),
    )


def _by_line(blocks: tuple[Block, ...]) -> tuple[tuple[str, int], ...]:
    step = max(levels(blocks), key=lambda found: found[1], default=(0, 0))[0]
    totals: dict[str, int] = {}
    for block in blocks:
        if block.start <= step <= block.end:
            name = block.source or "(no line)"
            totals[name] = totals.get(name, 0) + block.bytes
    return tuple(sorted(totals.items(), key=lambda row: (-row[1], row[0])))
