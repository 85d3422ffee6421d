"""The padding laws over models, algorithms and optimizers: a step that does not count changes nothing at all."""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import Algorithm, FedAvg, FedProx
from coterie.compute.nn import (
    GELU,
    GRU,
    LSTM,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    LayerNorm,
    Linear,
    MaxPool2d,
    MeanPool,
    MultiHeadAttention,
    PositionalEmbedding,
    ReLU,
    RMSNorm,
    Sequential,
    Sigmoid,
    Tanh,
)  # fmt: skip
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.module import Module
from coterie.compute.optim import Optimizer, adam, adamw, clipped, lbfgs, sgd, shampoo
from coterie.compute.training import accumulate
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

Arrays = Mapping[str, npt.NDArray[Any]]
ROWS = 6

MODELS: dict[str, tuple[Module, tuple[int, ...], str]] = {
    "mlp": (Sequential(Linear(4, 5), ReLU(), Linear(5, 3)), (4,), "float32"),
    "dropout": (Sequential(Linear(4, 8), Tanh(), Dropout(0.3), Linear(8, 3)), (4,), "float32"),
    "normed": (Sequential(Linear(4, 6), LayerNorm(6), GELU(), Linear(6, 3), Sigmoid()), (4,), "float32"),
    "conv": (
        Sequential(Conv2d(1, 2, 3, padding=1), ReLU(), MaxPool2d(2), AvgPool2d(2), Flatten(), Linear(8, 3)),
        (1, 8, 8),
        "float32",
    ),
    # Without biases before them: their gradient is 0 but for rounding, which Adam makes as large as any other.
    "batch norm": (Sequential(Linear(4, 6, bias=False), BatchNorm1d(6), ReLU(), Linear(6, 3)), (4,), "float32"),
    "batch norm of images": (
        Sequential(
            Conv2d(1, 2, 3, bias=False), BatchNorm2d(2), ReLU(), MaxPool2d(3, stride=2), Flatten(), Linear(8, 3)
        ),
        (1, 8, 8),
        "float32",
    ),
    "embedding": (Sequential(Embedding(9, 4), MeanPool(), Linear(4, 3)), (5,), "int32"),
    # Without biases either: that of the keys has no gradient.
    "attention": (
        Sequential(
            Embedding(9, 4),
            PositionalEmbedding(5, 4),
            MultiHeadAttention(4, 2, causal=True, bias=False),
            GroupNorm(1, 5),
            MeanPool(),
            Linear(4, 3),
        ),
        (5,),
        "int32",
    ),
    "recurrent": (
        Sequential(
            Embedding(9, 4),
            GRU(4, 3, bidirectional=True),
            LSTM(6, 2),
            LSTM(2, 2, bidirectional=True),
            RMSNorm(4),
            Flatten(),
            Linear(12, 3),
        ),
        (3,),
        "int32",
    ),
}
ALGORITHMS: dict[str, Algorithm] = {"fedavg": FedAvg(), "fedprox": FedProx(0.5)}
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": sgd(0.3),
    "decayed": sgd(0.3, weight_decay=0.01),
    "momentum": sgd(0.3, momentum=0.9),
    "nesterov": sgd(0.3, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": adam(0.1),
    "adamw": adamw(0.1),
    "accumulated": accumulate(adam(0.1), 2),
    "clipped": clipped(adam(0.1), 0.05),
    "shampoo": shampoo(0.1),
    "l-bfgs": lbfgs(0.1, memory=2),
}
LONG = {"attention", "recurrent"}  # graphs that take longer to compile, with two optimizers only
WIDE = {"accumulated", "clipped", "shampoo", "l-bfgs"}  # with much state or many operators; for two models only
TURNS = [name for name in OPTIMIZERS if name not in WIDE and name != "sgd"]
CASES = [
    *product(MODELS, ALGORITHMS, ["sgd"]),
    *(
        (model, tuple(ALGORITHMS)[(row + turn) % len(ALGORITHMS)], optimizer)
        for (row, model), (turn, optimizer) in product(enumerate(MODELS), enumerate(TURNS))
        if model not in LONG or optimizer == "adam"
    ),
    *product(("mlp", "batch norm"), ["fedprox"], sorted(WIDE)),
]
"""Every model with every algorithm and, but for long models, with every optimizer that is not wide; every algorithm
with every such optimizer; wide optimizers with two models and one algorithm.
"""


def test_every_two_of_model_algorithm_and_optimizer_are_together() -> None:
    narrow = [name for name in OPTIMIZERS if name not in WIDE]
    short = [name for name in MODELS if name not in LONG]
    assert {(model, algorithm) for model, algorithm, _ in CASES} >= set(product(MODELS, ALGORITHMS))
    assert {(algorithm, optimizer) for _, algorithm, optimizer in CASES} >= set(product(ALGORITHMS, narrow))
    assert {(model, optimizer) for model, _, optimizer in CASES} >= {
        *product(short, narrow),
        *product(LONG, ("sgd", "adam")),
        *product(("mlp", "batch norm"), WIDE),
    }


@cache
def compiled(model: str, algorithm: str, optimizer: str, rows: int = ROWS) -> CompiledPlan:
    module, shape, dtype = MODELS[model]
    feature = Feature(name="x", dtype=dtype, shape=shape)  # pyright: ignore[reportArgumentType]
    return compile_plan(
        Experiment(
            name="law",
            model=module,
            schema=DataSchema((feature,), Label(name="y")),
            rounds=RoundPolicy(rounds=1, cohort=1, min_updates=1),
            loss=softmax_cross_entropy,
            optimizer=OPTIMIZERS[optimizer],
            algorithm=ALGORITHMS[algorithm],
            metrics={"accuracy": accuracy},
            batch_size=rows,
        )
    )


def batch_of(make_batch: Callable[..., dict[str, npt.NDArray[Any]]], model: str, **options: Any) -> Any:
    _, shape, dtype = MODELS[model]
    return make_batch(shape, dtype=dtype, **options)


def assert_same_bits(left: Arrays, right: Arrays) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize(("model", "algorithm", "optimizer"), CASES)
def test_an_inactive_step_returns_the_whole_state_bit_for_bit(
    model: str, algorithm: str, optimizer: str, make_batch: Any, drive: Any
) -> None:
    plan = compiled(model, algorithm, optimizer)
    weights = {name: -value for name, value in plan.initial.items()}  # biases of −0.0 among them
    batches = [batch_of(make_batch, model, seed=seed) for seed in range(4)]
    driven = drive(plan.plan, weights, batches, active=[0.0, 1.0, 1.0, 0.0])
    start = {name: value + np.float32(0) for name, value in weights.items()}
    for name, value in start.items():
        place = f"buffer/{name}" if name in plan.plan.manifest.buffers else f"shared/{name}"
        assert driven.steps[0][place].tobytes() == value.tobytes(), name
        if name in plan.plan.manifest.buffers:
            assert np.all(driven.steps[1][place] != value), name
    assert_same_bits(driven.steps[3], driven.steps[2])
    assert any(np.any(driven.steps[3][name] != value) for name, value in driven.steps[0].items() if "shared/" in name)


@pytest.mark.parametrize(("model", "algorithm", "optimizer"), CASES)
def test_a_batch_without_weight_has_no_data_gradient(
    model: str, algorithm: str, optimizer: str, make_batch: Any, drive: Any
) -> None:
    """The state moves as it does on any other rows without weight: nothing of the data is in it, and nothing is NaN."""
    plan = compiled(model, algorithm, optimizer)
    empty = [batch_of(make_batch, model, seed=seed, real=0) for seed in (1, 2)]
    first, second = (drive(plan.plan, plan.initial, [batch_of(make_batch, model), rows]) for rows in empty)
    assert_same_bits(first.state, second.state)
    assert all(np.isfinite(value).all() for value in first.state.values())
    if (algorithm, optimizer) == ("fedavg", "sgd"):
        assert_same_bits(first.steps[1], first.steps[0])
    assert first.state["metric/examples"] == ROWS


@pytest.mark.parametrize(("model", "algorithm", "optimizer"), [case for case in CASES if case[0] != "dropout"])
def test_padding_rows_change_nothing_against_a_shorter_batch(
    model: str, algorithm: str, optimizer: str, make_batch: Any, drive: Any
) -> None:
    # Dropout is left out: a shorter batch draws other masks.
    long, short = compiled(model, algorithm, optimizer), compiled(model, algorithm, optimizer, 4)
    padded = [batch_of(make_batch, model, seed=seed, real=4) for seed in range(3)]
    cut = [{name: value[:4] for name, value in batch.items()} for batch in padded]
    left, right = drive(long.plan, long.initial, padded), drive(short.plan, short.initial, cut)
    for name in left.state:
        np.testing.assert_allclose(left.state[name], right.state[name], rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("model", sorted(name for name, (_, _, dtype) in MODELS.items() if dtype == "float32"))
def test_what_padding_rows_hold_does_not_matter(model: str, make_batch: Any, drive: Any) -> None:
    plan = compiled(model, "fedprox", "momentum")
    batch = batch_of(make_batch, model, real=4)
    other = {**batch, "x": batch["x"].copy(), "y": batch["y"].copy()}
    other["x"][4:] = 1e4
    other["y"][4:] = 0
    assert_same_bits(drive(plan.plan, plan.initial, [batch]).state, drive(plan.plan, plan.initial, [other]).state)
