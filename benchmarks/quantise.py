"""Quantisation after training: coterie's own beside ONNX Runtime's tools, on the same files and rows.

    COTERIE_DATA=DIR python benchmarks/quantise.py [--json] [--quick]

LeNet-5 and a perceptron (784-256-10) are trained for one epoch on the 60 000 training images of MNIST (Adam, batches of
64), and become int8 files with scales a channel, unsigned activations and signed weights, calibrated by extremes on 512
training images. Own: ``quant.quantise`` and ``quant.quantise_dynamic``. The runtime's: ``quantize_static`` in the QDQ
form after its own preparation, and ``quantize_dynamic``. Accuracy is that on the 10 000 test images.

``integer``, ``float`` and ``casts`` count the operators that the runtime runs after its own optimisation: products in
integers, products in float32, and operators between levels and floats. ``repeats``: whether a second call gives the
same bytes. ``histograms_add``: whether what three clients saw of their own rows adds up to what calibration by
divergence needs; own, the file must be that of the pooled rows, byte for byte; for the runtime's tools the histograms
of the clients must at least have one set of edges.

Budgets of the own files, against the runtime's: at most 2 % larger, not less accurate by more than 0.2 points, no more
products in float32, no more casts, the same bytes again, histograms that add. Latency, the median of 50 calls on one
thread, has none. With --quick a missed budget is no failure. DIR holds mnist.npz.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from export import Arrays, load, trained
from lines import Line, Peer, at_least, at_most, show
from onnx import ModelProto
from onnxruntime import quantization
from onnxruntime.quantization.calibrate import create_calibrator
from onnxruntime.quantization.shape_inference import quant_pre_process

from coterie.compute import quant
from coterie.compute.nn import Flatten, Module, Sequential
from coterie.compute.nn.zoo import lenet, mlp

ROWS, BATCH, CLIENTS = 512, 8, 3
LOSS_BUDGET, SIZE_BUDGET = 0.002, 1.02
UNITS = {"bytes": "bytes", "accuracy": "share", "latency_us": "us", "repeats": "1 is yes", "histograms_add": "1 is yes"}


class Reader(quantization.CalibrationDataReader):
    """Rows, a batch of the graph at a time, as the runtime's tools ask for them."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rest = iter([{"x": rows[start : start + BATCH]} for start in range(0, len(rows), BATCH)])

    def get_next(self) -> Any:
        """The next batch, None after the last."""
        return next(self._rest, None)


def peer_static(file: bytes, rows: Sequence[Any]) -> bytes:
    """The runtime's tool, prepared and set as its documentation recommends for the CPU."""
    with TemporaryDirectory() as folder:
        plain, ready, after = (Path(folder) / name for name in ("plain.onnx", "ready.onnx", "int8.onnx"))
        plain.write_bytes(file)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantization.quantize_static(
            ready,
            after,
            Reader(rows),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return after.read_bytes()


def peer_dynamic(file: bytes, rows: Sequence[Any]) -> bytes:
    """The runtime's tool on the file as it is."""
    with TemporaryDirectory() as folder:
        after = Path(folder) / "int8.onnx"
        quantization.quantize_dynamic(ModelProto.FromString(file), after, per_channel=True)
        return after.read_bytes()


def own_static(file: bytes, rows: Sequence[Any]) -> bytes:
    """coterie's own."""
    return quant.quantise(file, [{"x": rows}])


def own_dynamic(file: bytes, rows: Sequence[Any]) -> bytes:
    """The runtime's tool, on coterie's normal form of the file."""
    return quant.quantise_dynamic(file)


WAYS: Mapping[str, tuple[Callable[[bytes, Any], bytes], Callable[[bytes, Any], bytes]]] = {
    "static": (own_static, peer_static),
    "dynamic": (own_dynamic, peer_dynamic),
}


def own_histograms_add(file: bytes, rows: Any) -> bool:
    """Whether clients' histograms make the file of the pooled rows."""
    settings = quant.QuantSettings(calibration="kl")
    parts = [rows[BATCH * start : BATCH * stop] for start, stop in ((0, 10), (10, 40), (40, ROWS // BATCH))]
    extremes = [quant.observe(file, [{"x": part}]) for part in parts]
    bounds = {
        name: (min(seen[name].low for seen in extremes), max(seen[name].high for seen in extremes))
        for name in quant.observed(file)
    }
    counts = [quant.observe(file, [{"x": part}], bounds=bounds) for part in parts]
    total = {name: counts[0][name] + counts[1][name] + counts[2][name] for name in bounds}
    return quant.quantise_with(file, total, settings) == quant.quantise(file, [{"x": rows}], settings)


def peer_histograms_add(file: bytes, rows: Any) -> bool:
    """Whether the histograms that the runtime's tool makes of each client's rows count between the same edges."""
    edges: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plain.onnx"
        path.write_bytes(file)
        for part in np.array_split(rows, CLIENTS):
            method = quantization.CalibrationMethod.Entropy
            tool = cast(Any, create_calibrator(path, augmented_model_path=str(path.with_name("shown.onnx")),
                                               calibrate_method=method))  # fmt: skip
            with redirect_stdout(sys.stderr):  # it says what it does
                tool.collect_data(Reader(part[: len(part) // BATCH * BATCH]))
            edges.append({name: found[1] for name, found in tool.collector.histogram_dict.items()})
    first, *others = edges
    return all(np.array_equal(first[name], other[name]) for other in others for name in first)


def measured(file: bytes, made: bytes, test: Arrays, again: bytes) -> dict[str, Any]:
    """What one int8 file is like."""
    found = quant.report(file, made, {"x": test["x"]}, test["y"], calls=50)
    side = found.after
    return {
        "bytes": side.size,
        "accuracy": round(side.score, 4),
        "accuracy_float32": round(found.before.score, 4),
        "latency_us": round(1000 * side.latency_ms, 1),
        "integer": side.integer,
        "float": side.float,
        "casts": side.casts,
        "repeats": made == again,
    }


def compared(model: str, way: str, file: bytes, train: Arrays, test: Arrays) -> Iterator[Line]:
    """Both tools on one model, a line for each figure."""
    rows = train["x"][:ROWS]
    own, peer = (measured(file, make(file, rows), test, make(file, rows)) for make in WAYS[way])
    if way == "static":
        own["histograms_add"], peer["histograms_add"] = own_histograms_add(file, rows), peer_histograms_add(file, rows)
    budgets = {
        "bytes": at_most(SIZE_BUDGET, "ratio"),
        "accuracy": at_least(peer["accuracy"] - LOSS_BUDGET),
        "float": at_most(peer["float"]),
        "casts": at_most(peer["casts"]),
        "repeats": at_least(1),
        "histograms_add": at_least(1),
    }
    details = {"batch": BATCH, "accuracy_float32": own.pop("accuracy_float32")}
    for name, figure in own.items():
        beside = Peer("ONNX Runtime", float(peer[name]))
        case = f"{model} {way}, {name}"
        yield Line(case, float(figure), UNITS.get(name, "operators"), beside, budgets.get(name), details)


def perceptron() -> Module:
    """784-256-10."""
    return Sequential(Flatten(), *mlp((784, 256, 10)).layers)


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="6 000 training images, to see that it runs")
    options = parser.parse_args()
    train, test = load(quick=options.quick)
    missed = False
    for model, make in (("lenet", lenet), ("mlp", perceptron)):
        file = trained(make(), train, BATCH, epochs=1)
        for way in WAYS:
            for line in compared(model, way, file, train, test):
                missed |= line.met is False
                show(line, as_json=options.json)
    sys.exit(1 if missed and not options.quick else 0)


if __name__ == "__main__":
    main()
