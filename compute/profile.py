"""Where a graph spends its time on ONNX Runtime's CPU provider, told by the user's lines."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import onnx

from coterie.compute import tree
from coterie.compute.array import as_array
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.source import user_source
from coterie.compute.trace import is_array, trace
from coterie.errors import InputError

_WARM_UP = 2  # runs that are not counted: they allocate
_CONTROL = frozenset({"If", "Loop", "Scan"})  # their time is that of the nodes inside, which have events of their own
_NO_LINE = "(no line)"


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """What one line of the user's costs in one step: seconds, its share of all, how many operators ran, and which."""

    source: str
    seconds: float
    share: float
    count: int
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """Rows by line, the slowest first, and the seconds of one step that are spent in operators."""

    rows: tuple[ProfileRow, ...]
    seconds: float
    steps: int

    def __str__(self) -> str:
        width = max((len(row.source) for row in self.rows), default=4)
        lines = [f"{'line':<{width}} {'us a step':>10} {'share':>6} {'ops':>5}  operators"]
        lines += [
            f"{row.source:<{width}} {row.seconds * 1e6:>10.1f} {row.share:>6.1%} {row.count:>5}  "
            f"{', '.join(row.operators)}"
            for row in self.rows
        ]
        return "\n".join([*lines, f"{'all':<{width}} {self.seconds * 1e6:>10.1f}"])


def profile(
    fn_or_graph: Callable[..., Any] | Graph,
    inputs: Sequence[Any] | Mapping[str, NDArray],
    steps: int = 20,
    *,
    threads: int = 1,
) -> Profile:
    """Run a function or a graph a few times, and tell the mean time of each line of the user's. Print it for a table.

    inputs: the positional arguments of a function, or the arrays of a graph by the names of its inputs. A function is
    traced and optimised first, a graph is run as it is. Lines are "file:line" without folders; where the runtime fused
    operators of several lines, the time counts for the first of them. The clock of the runtime counts microseconds.

    Raises InputError for inputs that do not fit or steps below 1, TraceError for a function that is no graph.
    """
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}.")
    graph, feeds = _prepared(fn_or_graph, inputs)
    data = to_onnx(graph, name="profile", sources=True, target="cpu")
    with TemporaryDirectory() as folder:
        executable = Executable(data, threads=threads, profile_prefix=str(Path(folder) / "profile"))
        for _ in range(_WARM_UP + steps):
            executable.run(feeds)
        events = json.loads(Path(executable.session.end_profiling()).read_text(encoding="utf-8"))
    return _profile(events, _lines(onnx.load_from_string(data).graph), steps)


def _prepared(fn_or_graph: Callable[..., Any] | Graph, inputs: Any) -> tuple[Graph, dict[str, NDArray]]:
    kind = type(cast(object, inputs))
    if not issubclass(kind, Mapping if isinstance(fn_or_graph, Graph) else list | tuple):
        raise InputError(
            f"{user_source()}: profile: the inputs are a {kind.__name__}.",
            hint="Give a function its arguments in a list, and a graph its arrays in a dictionary by name.",
        )
    if isinstance(fn_or_graph, Graph):
        made, arrays = fn_or_graph, {name: as_array(array).numpy() for name, array in dict(inputs).items()}
    else:
        traced = trace(fn_or_graph, *inputs)
        leaves, structure = tree.flatten(tuple(inputs))
        arrays = {
            path: as_array(leaf).numpy() for path, leaf in zip(structure.paths(), leaves, strict=True) if is_array(leaf)
        }
        made = optimise(traced.graph)
    prefix = "result/"  # an input and an output may have the same name, and a file has each once
    while any(name.startswith(prefix) for name in made.inputs):
        prefix = f"/{prefix}"
    graph = Graph(made.inputs, made.nodes, {f"{prefix}{name}": value for name, value in made.outputs.items()})
    return graph, {name: array.reshape(array.shape or (1,)) for name, array in arrays.items()}


def _lines(graph: Any) -> dict[str, str]:
    """The user's line of every node by its name, those in the graphs inside nodes too."""
    found: dict[str, str] = {}
    for node in graph.node:
        found[node.name] = node.doc_string
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found.update(_lines(attribute.g))
    return found


def _profile(events: Sequence[Mapping[str, Any]], lines: Mapping[str, str], steps: int) -> Profile:
    durations: dict[tuple[str, str], list[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            operator = str(event["args"]["op_name"])
            if operator not in _CONTROL:
                durations.setdefault((name.removesuffix("_kernel_time"), operator), []).append(float(event["dur"]))
    seconds: dict[str, float] = {}
    counts: dict[str, float] = {}
    operators: dict[str, dict[str, None]] = {}
    for (name, operator), found in durations.items():
        # Runs of the same inputs are alike, so the first of them have the first part of the events.
        counted = found[len(found) * _WARM_UP // (_WARM_UP + steps) :]
        line = _line(name, lines)
        seconds[line] = seconds.get(line, 0.0) + sum(counted) * 1e-6 / steps
        counts[line] = counts.get(line, 0.0) + len(counted) / steps
        operators.setdefault(line, {})[operator] = None
    total = sum(seconds.values())
    rows = [
        ProfileRow(line, spent, spent / total if total else 0.0, round(counts[line]), tuple(operators[line]))
        for line, spent in sorted(seconds.items(), key=lambda row: -row[1])
    ]
    return Profile(tuple(rows), total, steps)


def _line(name: str, lines: Mapping[str, str]) -> str:
    """The line of a node of the runtime, whose name holds those of the nodes that it was made of."""
    if name in lines:
        return lines[name] or _NO_LINE
    words = name.replace("/", " ").split()
    return next((lines[word] for word in words if lines.get(word)), _NO_LINE)
