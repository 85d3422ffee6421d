"""What an inference costs a device: latency, memory, size, power where it can be measured; and is it safe."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import R_OK, access
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from coterie.compute.ir import NDArray
from coterie.compute.runtime.bare_process import run_script
from coterie.errors import GraphRefused, InputError

NOT_MEASURED = "not measured"
_SCRIPT = Path(__file__).with_name("bare_inference.py")
_COUNTERS = Path("/sys/class/powercap")
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True, kw_only=True)
class InferenceMetrics:
    """One model on this machine's CPU.

    load_ms: from the file to a session that is ready. latency_ms: of one run, by name: least, p50, p90, p99, most.
    examples_per_s: rows of a batch divided by the median. size_bytes: of the file. memory_bytes: by how much a process
    grows that loads and runs it, at its peak; None where the system does not say. power_w: of the whole processor while
    it ran, from its energy counters; None where there are none that can be read. safety: what holds, by name. runtime:
    the version of ONNX Runtime.
    """

    load_ms: float
    latency_ms: Mapping[str, float]
    examples_per_s: float
    size_bytes: int
    memory_bytes: int | None
    power_w: float | None
    safety: Mapping[str, bool]
    threads: int
    runs: int
    runtime: str

    def to_json(self) -> dict[str, Any]:
        """Every field by name; what is unknown is "not measured", never a guess."""
        said = asdict(self)
        return said | {name: NOT_MEASURED for name in ("memory_bytes", "power_w") if said[name] is None}


def inference_metrics(
    model: bytes, feeds: Mapping[str, NDArray], *, runs: int = 200, threads: int = 1, counters: Path = _COUNTERS
) -> InferenceMetrics:
    """Run a model in a process of its own, with ONNX Runtime and NumPy alone, and tell what it costs.

    feeds: one batch, by input name. runs: how many runs are timed. counters: the folder of the system's energy counters
    (Linux's powercap).

    safety: ``self_contained`` (no weights in other files), ``stock_operators`` (none that need another library),
    ``finite`` (outputs on these feeds), ``repeatable`` (the same bits from the first and the last run).

    Raises GraphRefused (code ``bare_runtime``) for a model that ONNX Runtime does not run on these feeds, InputError
    for runs or threads below 1, or no feeds.
    """
    if runs < 1 or threads < 1 or not feeds:
        raise InputError(
            f"inference_metrics: needs at least one run, thread and input, got {runs}, {threads}, {len(feeds)}."
        )
    safety = _static(model)
    told = _answered(model, feeds, runs, threads, _energy_files(counters))
    spent = np.sort(told["milliseconds"])
    marks = {"least": 0, "p50": 50, "p90": 90, "p99": 99, "most": 100}
    latency = {name: float(np.percentile(spent, mark)) for name, mark in marks.items()}
    return InferenceMetrics(
        load_ms=told["load_ms"],
        latency_ms=latency,
        examples_per_s=_examples(feeds) / latency["p50"] * 1e3,
        size_bytes=len(model),
        memory_bytes=told["memory_bytes"],
        power_w=told["watts"],
        safety={**safety, "finite": told["finite"], "repeatable": told["repeatable"]},
        threads=threads,
        runs=runs,
        runtime=told["runtime"],
    )


def _examples(feeds: Mapping[str, NDArray]) -> int:
    shape = next(iter(feeds.values())).shape
    return shape[0] if shape else 1


def _energy_files(folder: Path) -> list[str]:
    """Counters of whole processors (not of their parts, which these include) that may be read."""
    found = sorted(folder.glob("*:[0-9]*/energy_uj"))
    return [str(file) for file in found if file.parent.name.count(":") == 1 and access(file, R_OK)]


def _static(model: bytes) -> dict[str, bool]:
    try:
        graph = ModelProto.FromString(model)
    except Exception as error:  # protobuf raises several classes
        raise GraphRefused(f"The bytes are not an ONNX graph: {error}", code="bare_runtime") from error
    own = {function.domain for function in graph.functions}
    return {
        "self_contained": all(t.data_location != TensorProto.EXTERNAL for t in graph.graph.initializer),
        "stock_operators": all(opset.domain in (*_DOMAINS, *own) for opset in graph.opset_import),
    }


def _answered(model: bytes, feeds: Mapping[str, NDArray], runs: int, threads: int, energy: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="coterie-metrics-") as made:
        folder = Path(made)
        (folder / "model.onnx").write_bytes(model)
        columns = {f"input_{index}": value for index, value in enumerate(feeds.values())}
        np.savez(folder / "feeds.npz", **columns)  # pyright: ignore[reportArgumentType]  its stub forgets keywords
        request = {"inputs": list(feeds), "runs": runs, "threads": threads, "energy": energy}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        return run_script(_SCRIPT, folder)
