"""What quantisation did to a model: the three questions of accuracy, hardware and real benefit, with their answers."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeAlias, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import ModelProto

from coterie.compute.ir import NDArray
from coterie.compute.quant.calibration import feeds
from coterie.compute.runtime.session import CPU, Session, available_providers, open_session
from coterie.errors import CoterieError, InputError

Score: TypeAlias = Callable[[NDArray, NDArray], NDArray]
"""(outputs, labels) → one number per row, [rows]."""

CASTS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast")
_INTEGER = ("QLinear", "QGemm", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul", "QAttention")
_FLOAT = ("Conv", "FusedConv", "NhwcFusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "ConvTranspose")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One file. size: bytes. score: mean over the rows. latency_ms: the median call with as many rows as the graph
    takes, one thread, wall time on this machine. casts: operators between floats and levels that the runtime runs after
    its own optimisation; what it joined into kernels does not count. integer, float: products and convolutions that it
    runs in integers, and in floats. providers: for each that is here, whether it loads the file without falling back to
    the CPU provider.
    """

    size: int
    score: float
    latency_ms: float
    casts: int
    integer: int
    float: int
    providers: Mapping[str, bool]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Both files. agreement: the share of rows on which both have the largest output at the same place."""

    before: Side
    after: Side
    agreement: float

    @property
    def size_ratio(self) -> float:
        """Bytes after by bytes before."""
        return self.after.size / self.before.size

    @property
    def score_loss(self) -> float:
        """By how much the mean score fell."""
        return self.before.score - self.after.score

    def __str__(self) -> str:
        rows = [f"{'':<24}{'before':>14}{'after':>14}"]
        for name in ("size", "score", "latency_ms", "casts", "integer", "float"):
            values = [getattr(side, name) for side in (self.before, self.after)]
            rows.append(
                f"{name:<24}" + "".join(f"{value:>14.4f}" if name in _REAL else f"{value:>14}" for value in values)
            )
        for name in self.before.providers:
            told = ["runs" if side.providers[name] else "refuses" for side in (self.before, self.after)]
            rows.append(f"{name:<24}" + "".join(f"{value:>14}" for value in told))
        return "\n".join([*rows, f"{'agreement':<24}{'':>14}{self.agreement:>14.4f}"])


_REAL = ("score", "latency_ms")


def right_class(outputs: NDArray, labels: NDArray) -> NDArray:
    """1 where the largest output is that of the label."""
    return (outputs.argmax(axis=-1) == labels).astype(np.float64)


def report(
    before: bytes,
    after: bytes,
    rows: Mapping[str, NDArray],
    labels: NDArray,
    *,
    score: Score = right_class,
    calls: int = 200,
) -> Report:
    """Measure a model and its quantised form on the same rows.

    before, after: ONNX files of the same inputs. rows: arrays by input name; rows that do not fill a batch of the graph
    are left out. labels: [rows]. score: of the first output. calls: how many are timed, the two files in turns, so that
    what else the machine does falls on both.

    Raises InputError for rows that do not fit, GraphRefused for a file that the runtime does not load.
    """
    sessions = [
        open_session(file, threads=1, provider=CPU, spinning=False, arena=True, fallback=False)
        for file in (before, after)
    ]
    parts = list(feeds([rows], {argument.name: argument for argument in sessions[0].get_inputs()}))
    if not parts:
        raise InputError("report: there are not enough rows for one batch of the graph.")
    outputs = [np.concatenate([session.run(None, part)[0] for part in parts]) for session in sessions]
    told = labels[: len(outputs[0])]
    times = _timed(sessions, parts[0], calls)
    sides = [
        _side(file, float(np.mean(score(output, told))), time)
        for file, output, time in zip((before, after), outputs, times, strict=True)
    ]
    agreement = float((outputs[0].argmax(axis=-1) == outputs[1].argmax(axis=-1)).mean())
    return Report(before=sides[0], after=sides[1], agreement=agreement)


def _timed(sessions: list[Session], feed: Mapping[str, NDArray], calls: int) -> list[float]:
    """The median milliseconds of a call of each."""
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(max(calls, 1)):
        for session, found in zip(sessions, times, strict=True):
            start = perf_counter()
            session.run(None, feed)
            found.append((perf_counter() - start) * 1e3)
    return [median(found) for found in times]


def _side(file: bytes, score: float, latency_ms: float) -> Side:
    counts = operators_run(file)
    return Side(
        size=len(file),
        score=score,
        latency_ms=latency_ms,
        casts=sum(counts[name] for name in CASTS),
        integer=sum(count for name, count in counts.items() if name.startswith(_INTEGER)),
        float=sum(counts[name] for name in _FLOAT),
        providers={provider: _loads(file, provider) for provider in available_providers()},
    )


def operators_run(file: bytes) -> Counter[str]:
    """How many operators of each kind ONNX Runtime's CPU provider runs, after its own optimisation."""
    runtime = cast(Any, onnxruntime)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(path)
        runtime.InferenceSession(file, options, providers=[CPU])
        optimised = ModelProto.FromString(path.read_bytes())
    return Counter(str(node.op_type) for node in optimised.graph.node)


def _loads(file: bytes, provider: str) -> bool:
    try:
        open_session(file, threads=1, provider=provider, spinning=False, arena=True, fallback=False)
    except CoterieError:
        return False
    return True
