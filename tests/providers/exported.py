"""Files for inference, of networks of convolutions, products and attention: folded, in float16, and in int8 of each
form, after training and of training in levels.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from coterie.compute import TensorSpec, nn, optimise_for_inference, quant, to_onnx, trace_named
from coterie.compute.array import Array
from coterie.compute.export import Examples, ExportOptions, export
from coterie.compute.export.comparison import Thresholds
from coterie.compute.export.options import Precision
from coterie.compute.ir import Graph
from coterie.compute.passes.inference import in_float16, optimise_for_integers
from coterie.compute.quant import QuantSettings
from coterie.compute.quant.settings import Form
from coterie.compute.runtime.reference import evaluate
from tests.providers.emitted import CLOSE, EmittedCase

ROWS = 8
# A number that lies at the middle of two levels may fall to either side, and a sum of bytes saturates on processors
# without VNNI: relative to the largest result. What float16 keeps are eleven bits.
LEVELS, HALVES = 0.02, 0.01
_ANY = Thresholds(cosine=0.9, euclidean=0.5)


@dataclass(frozen=True)
class Network:
    """model: what is exported. shape: of one row."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def weights(self) -> dict[str, NDArray[Any]]:
        """First weights, pushed to one side so that zeros of asymmetric levels differ from channel to channel."""
        rng = np.random.default_rng(0)
        return {
            name: value + (rng.uniform(-0.2, 0.2, (len(value),) + (1,) * (value.ndim - 1))).astype(np.float32)
            if value.ndim > 1
            else value
            for name, value in self.model().init(0).items()
        }

    def graph(self) -> Graph:
        """Its answers to ROWS rows, its weights inside."""
        model, weights = self.model(), {name: Array(value) for name, value in self.weights().items()}
        spec = TensorSpec((ROWS, *self.shape))
        return trace_named(lambda given: {"output": model(weights, given["x"])}, {"x": spec})

    def rows(self) -> NDArray[Any]:
        """Rows to calibrate with and to answer."""
        return np.random.default_rng(1).normal(size=(ROWS, *self.shape)).astype(np.float32)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def _dense() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 5))


def _attention() -> nn.Module:
    return nn.Sequential(nn.TransformerBlock(8, 2), nn.Linear(8, 5))


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "convolutions": Network(_convolutions, (1, 8, 8)),
        "products": Network(_dense, (12,)),
        "attention": Network(_attention, (4, 8)),
    }
)
_FORMS: tuple[Form, ...] = ("symmetric", "asymmetric")
_SETTINGS = tuple(
    QuantSettings(weights=weights, activations=activations, per_channel=per_channel)
    for weights, activations, per_channel in product(_FORMS, (*_FORMS, None), (True, False))
) + tuple(
    QuantSettings(weights=form, weight_bits=bits, activation_bits=few)
    for form, bits, few in product(_FORMS, (7, 4), (8, 6))
)
_TRAINED = tuple(QuantSettings(weights=form, per_channel=each) for form, each in product(_FORMS, (True, False)))
_PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8", "int8-dynamic")


def exported_cases() -> Iterator[EmittedCase]:
    """Every file of every network."""
    for name, network in NETWORKS.items():
        graph, rows = network.graph(), network.rows()
        yield from _floats(name, graph, rows)
        integers = to_onnx(optimise_for_integers(graph), name="infer")
        for settings in _SETTINGS:
            data = quant.quantise(integers, [{"x": rows}], settings)
            # Of fewer bits a level is larger.
            most = LEVELS * (1 << (8 - settings.activation_bits))
            yield _by_onnx(f"{name}, {_words(settings)}", data, rows, most)
        yield _by_onnx(f"{name}, dynamic", quant.quantise_dynamic(integers), rows, LEVELS)
        for settings in _TRAINED if name != "attention" else ():
            data = _deployed(network, settings)
            yield _by_onnx(f"{name}, trained, {_words(settings)}", data, rows, LEVELS, "input")
        for precision in _PRECISIONS:
            yield _delivered(name, network, precision)


def _floats(name: str, graph: Graph, rows: NDArray[Any]) -> Iterator[EmittedCase]:
    expected, folded = evaluate(graph, {"x": rows}), optimise_for_inference(graph)
    for what, each, most in (
        ("as it is", graph, CLOSE["float32"]),
        ("folded", folded, CLOSE["float32"]),
        ("in float16", in_float16(folded), HALVES),
    ):
        data = to_onnx(each, name="infer")
        yield EmittedCase(name=f"{name}, {what}", data=data, feeds={"x": rows}, expected=expected, most=most)


def _delivered(name: str, network: Network, precision: Precision) -> EmittedCase:
    """What ``coterie export`` delivers, which has been run by a bare runtime of the same version already."""
    rows = network.rows()
    options = ExportOptions(
        precision=precision, repeats=1, parity=_ANY, quantisation=QuantSettings(weights="asymmetric")
    )
    data = export(network.graph(), options, examples=Examples(inputs={"x": rows})).data
    most = {"float32": CLOSE["float32"], "float16": HALVES}.get(precision, LEVELS)
    return _by_onnx(f"{name}, delivered in {precision}", data, rows, most)


def _deployed(network: Network, settings: QuantSettings) -> bytes:
    """The file of training in levels, of which inputs from -3 to 3 were seen by every layer."""
    model = quant.qat(network.model(), settings)
    seen = {name: value for name, value in model.init(0).items() if name not in network.weights()}
    ranges = {name: np.full_like(value, _END[name.rpartition("_")[2]]) for name, value in seen.items()}
    return quant.deploy(model, {**network.weights(), **ranges}, TensorSpec((ROWS, *network.shape)))


_END: Mapping[str, float] = MappingProxyType({"low": -3.0, "high": 3.0, "seen": 1.0})


def _by_onnx(name: str, data: bytes, rows: NDArray[Any], most: float, put: str = "x") -> EmittedCase:
    """The case whose results are those of onnx's own evaluator, which is NumPy and nobody's provider."""
    proto = ModelProto.FromString(data)
    proto.opset_import[0].version = 19  # the evaluator has DequantizeLinear from here on, which computes the same
    (output,) = [value.name for value in proto.graph.output]
    found = cast(Any, ReferenceEvaluator(proto)).run([output], {put: rows})
    return EmittedCase(name=name, data=data, feeds={put: rows}, expected={output: np.asarray(found[0])}, most=most)


def _words(settings: QuantSettings) -> str:
    each = "per channel" if settings.per_channel else "per tensor"
    bits = f"{settings.weight_bits} and {settings.activation_bits} bits"
    return f"{settings.weights} weights {each}, activations {settings.activations or 'in float32'}, {bits}"
