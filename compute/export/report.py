"""What an export changed, measured: accuracy, size and latency before and after."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from onnx import ModelProto

from coterie.compute.export.comparison import Similarity
from coterie.compute.export.examples import Metric
from coterie.compute.export.options import Precision


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One file. bytes: of the file. parameters: elements of its initialisers. operators: how often each occurs.
    operations: floating point operations of one batch, counted from shapes; None for what is not counted (integers).
    milliseconds: the median time of one batch. score: on the labels, None without.
    """

    bytes: int
    parameters: int
    operators: Mapping[str, int]
    operations: int | None
    milliseconds: float
    score: float | None


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """before, after: the files, each run in a bare ONNX Runtime (``runtime``) of ``threads`` threads on the CPU, taking
    turns. batch: rows of one run. rows: examples that were compared; 0 when there were none and random numbers stood
    for them. metric: what ``score`` is. same_answers: the share of rows to which both files give the same class, None
    where outputs are no classes. parity: the exported file against the NumPy reference of the graph
    before any pass, on the first rows. agreement: against the file before, on all rows.
    calibrated: rows that int8 was calibrated on.
    """

    precision: Precision
    before: Figures
    after: Figures
    batch: int
    rows: int
    metric: Metric | None
    same_answers: float | None
    parity: Similarity
    agreement: Similarity
    calibrated: int
    runtime: str
    threads: int

    @property
    def size_ratio(self) -> float:
        """Bytes after, divided by bytes before."""
        return self.after.bytes / self.before.bytes

    @property
    def latency_ratio(self) -> float:
        """Median time of one batch after, divided by that before."""
        return self.after.milliseconds / self.before.milliseconds

    def to_json(self) -> dict[str, Any]:
        """Every field and both ratios, as JSON values."""
        return asdict(self) | {"size_ratio": self.size_ratio, "latency_ratio": self.latency_ratio}

    def rows_of_table(self) -> Sequence[tuple[str, str, str, str]]:
        """What was measured, before, after, and how the two compare."""
        before, after = self.before, self.after
        rows = [
            ("size", f"{before.bytes} B", f"{after.bytes} B", f"x {self.size_ratio:.3f}"),
            ("parameters", str(before.parameters), str(after.parameters), ""),
            ("operators", str(sum(before.operators.values())), str(sum(after.operators.values())), ""),
            (
                f"median of one batch of {self.batch}",
                f"{before.milliseconds:.3f} ms",
                f"{after.milliseconds:.3f} ms",
                f"x {self.latency_ratio:.2f}",
            ),
        ]
        if before.score is not None and after.score is not None and self.metric is not None:
            change = after.score - before.score
            rows.append((self.metric.replace("_", " "), f"{before.score:.4f}", f"{after.score:.4f}", f"{change:+.4f}"))
        if self.same_answers is not None:
            rows.append(
                (
                    "same answers",
                    "",
                    f"{self.same_answers:.4f}",
                    f"of {self.rows} rows" if self.rows else "of random rows",
                )
            )
        rows.append(("cosine similarity", "", f"{self.parity.cosine:.6f}", "to the reference"))
        return rows


def counted(data: bytes) -> tuple[int, dict[str, int]]:
    """The elements of a file's initialisers, and how often each operator occurs."""
    graph = ModelProto.FromString(data).graph
    operators = Counter(node.op_type for node in graph.node)
    return sum(prod(tensor.dims) for tensor in graph.initializer), dict(sorted(operators.items()))
