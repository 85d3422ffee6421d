"""Plans of every kind of model and of every method, small: what providers and versions of ONNX Runtime have to run.

Each graph of a plan is run on random numbers and held against onnx's own evaluator, which is NumPy and nobody's
provider.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import ALGORITHMS, Algorithm, FedAvg
from coterie.aggregation.plan.stage import StageInput
from coterie.compute import nn
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.module import Module
from coterie.compute.nn.zoo import char_gru, char_transformer, mlp, mobilenet, resnet
from coterie.compute.optim import Optimizer, adam, sgd
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

CLASSES, BATCH = 3, 4
IMAGES = Feature(name="x", shape=(1, 8, 8), low=-10, high=10)
TEXT = Feature(name="x", shape=(5,), dtype="int32", low=0, high=CLASSES - 1)
PRIVATE = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=10, max_batch=6)
NUMBERS = Feature(name="x", shape=(4,), low=-10, high=10)


@dataclass(frozen=True)
class PlanCase:
    """A model, what it reads, how it is trained."""

    name: str
    model: Callable[[], Module]
    feature: Feature = NUMBERS
    algorithm: Callable[[], Algorithm] = FedAvg
    optimizer: Callable[[], Optimizer] = lambda: sgd(0.1)
    privacy: ExampleLevel | None = None

    def compiled(self) -> CompiledPlan:
        """The plan and its first weights."""
        schema = DataSchema((self.feature,), Label(name="y", low=0, high=CLASSES - 1))
        return compile_plan(
            Experiment(
                name=self.name.replace(" ", "-"),
                model=self.model(),
                schema=schema,
                loss=softmax_cross_entropy,
                optimizer=self.optimizer(),
                metrics={"accuracy": accuracy},
                batch_size=BATCH,
                algorithm=self.algorithm(),
                rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0, weight_cap=1 if self.privacy else 10_000),
                privacy=self.privacy,
            )
        )


def _dense() -> Module:
    return mlp((4, 8, CLASSES))


def _lenet() -> Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    )


def _batch_normalised() -> Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def _dropped() -> Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


# What a method must be told besides its name.
_TOLD: Mapping[str, tuple[Any, ...]] = {
    "fedprox": (0.3,), "scaffold": (4,), "feddyn": (4, 0.2), "qfedavg": (1.0,), "ifca": (2,),
}  # fmt: skip
# Rules of the server alone: their graphs are FedAvg's.
_SAME = {"cyclic", "fedbuff", "fedasync"}

PLANS: tuple[PlanCase, ...] = (
    PlanCase("dense by Adam", _dense, optimizer=lambda: adam(1e-3)),
    PlanCase("dense with dropout", _dropped),
    PlanCase("convolutions", _lenet, IMAGES),
    PlanCase("batch normalisation", _batch_normalised, IMAGES),
    PlanCase("residual", lambda: resnet(1, CLASSES, (4, 8), groups=2), IMAGES),
    PlanCase("by channel", lambda: mobilenet(1, CLASSES, ((2, 4, 1, 2),), stem=4, last=8, groups=2), IMAGES),
    PlanCase("dense, rows private", _dense, privacy=PRIVATE),
    PlanCase("convolutions, rows private", _lenet, IMAGES, privacy=PRIVATE),
    PlanCase("attention, rows private", lambda: char_transformer(CLASSES, 8, 2, 1, 5), TEXT, privacy=PRIVATE),
    PlanCase("recurrent", lambda: char_gru(CLASSES, 4, 6), TEXT),
    PlanCase("attention", lambda: char_transformer(CLASSES, 8, 2, 1, 5), TEXT),
    *(
        PlanCase(f"method {name}", _dense, algorithm=lambda make=make, name=name: make(*_TOLD.get(name, ())))
        for name, make in ALGORITHMS.items()
        if name not in _SAME
    ),
)


@dataclass(frozen=True)
class GraphCase:
    """A graph of a plan with numbers to run it on, and what comes out."""

    plan: str
    graph: str
    data: bytes
    feeds: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]


def graph_cases(case: PlanCase) -> Iterator[GraphCase]:
    """Every graph of a plan."""
    compiled = case.compiled()
    for name, data in compiled.plan.graphs.items():
        manifest = compiled.plan.manifest.stage(name)
        feeds = {tensor.name: _value(tensor, compiled, case.feature) for tensor in manifest.inputs}
        proto = onnx.load_from_string(data)
        outputs = [value.name for value in proto.graph.output]
        found = cast(Any, ReferenceEvaluator(proto)).run(outputs, feeds)
        yield GraphCase(case.name, name, data, feeds, dict(zip(outputs, map(np.asarray, found), strict=True)))


def _value(tensor: StageInput, compiled: CompiledPlan, feature: Feature) -> NDArray[Any]:
    """Numbers that the input could hold: those of the plan where it states them, else drawn by the input's name."""
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    stated = {**compiled.initial, **compiled.frozen}.get(tensor.key)
    if stated is not None and stated.shape == tensor.shape and tensor.source != "noise":
        return stated
    match tensor.source:
        case "batch" if tensor.key == "sample_weight":
            return (np.arange(tensor.shape[0]) < 3).astype(np.float32)  # three rows, and padding
        case "batch" if tensor.dtype == "int32":
            return rng.integers(0, CLASSES, tensor.shape).astype(np.int32)
        case "hyper":
            return np.array([compiled.plan.manifest.hyper[tensor.key]], np.float32)
        case "active" | "probe" | "counter":
            return np.full(tensor.shape, 2.0 if tensor.source == "counter" else 1.0, tensor.dtype)
        case "noise":
            return rng.integers(-1000, 1000, tensor.shape).astype(tensor.dtype)
        case "batch":
            return rng.normal(size=tensor.shape).astype(np.float32)
        case _:
            # State, moments among it, which are never negative.
            return (0.5 * rng.random(tensor.shape)).astype(tensor.dtype)
