"""A plan's step, cut by layers for the stages of a pipeline, is the step that one process makes."""

from typing import Any

import numpy as np
import pytest

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.compute.nn import (
    GRU,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool2d,
    MeanPool,
    PositionalEmbedding,
    ReLU,
    Sequential,
    Tanh,
    TransformerBlock,
)  # fmt: skip
from coterie.compute.nn.module import Module
from coterie.compute.onnx.pipeline.cut import before, sum_name
from coterie.compute.onnx.spread.placement import Unspreadable
from coterie.compute.onnx.spread.reading import StepGraph
from coterie.compute.optim import Optimizer, adam, clipped, sgd
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.protocol.schema import DataSchema, Feature, Label
from tests.aggregation.test_padding_laws import CASES, ROWS, batch_of, compiled
from tests.aggregation.test_spread_laws import METHODS, STEPS, Arrays, batches_of, compares, experiment, feeds_of
from tests.compute.pipeline.in_turn import InTurn

BOUND = 1e-5
SHARED = [case for case in CASES if not case[0].startswith("batch norm")]

DEEP: dict[str, tuple[Module, tuple[int, ...], str]] = {
    "mlp": (Sequential(Linear(4, 9), ReLU(), Linear(9, 7), Tanh(), Dropout(0.3), Linear(7, 3)), (4,), "float32"),
    "cnn": (
        Sequential(Conv2d(1, 2, 3), ReLU(), MaxPool2d(2), Conv2d(2, 3, 2), ReLU(), Flatten(), Linear(12, 3)),
        (1, 8, 8),
        "float32",
    ),
    "transformer": (
        Sequential(
            Embedding(9, 4),
            PositionalEmbedding(5, 4),
            TransformerBlock(4, 2),
            TransformerBlock(4, 2),
            LayerNorm(4),
            MeanPool(),
            Linear(4, 3),
        ),
        (5,),
        "int32",
    ),
    "gru": (Sequential(Embedding(9, 4), GRU(4, 5), GRU(5, 3), Flatten(), Linear(15, 3)), (5,), "int32"),
}
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": sgd(0.2),
    "momentum": sgd(0.2, momentum=0.9),
    "clipped": clipped(adam(0.05), 0.01),
}


def case_of(plan: CompiledPlan, feeds: Arrays) -> StepCase:
    """The step with these inputs."""
    stage = plan.plan.manifest.stage("train")
    carried = set(stage.carry.values())
    fed = {tensor.name for source in ("batch", "random", "noise", "active") for tensor in stage.from_source(source)}  # pyright: ignore[reportArgumentType]
    return StepCase(
        data=plan.plan.graphs["train"],
        carry=stage.carry,
        constants={name: value for name, value in feeds.items() if name not in carried | fed},
        state={name: value for name, value in feeds.items() if name in carried},
        feeds={name: value for name, value in feeds.items() if name in fed},
    )


def in_turn(plan: CompiledPlan, feeds: Arrays, processes: int, *, reverse: bool = False) -> InTurn:
    stage = plan.plan.manifest.stage("train")
    batch = [tensor.name for tensor in stage.from_source("batch") if tensor.key != "sample_weight"]
    return InTurn(case_of(plan, feeds), batch=batch, processes=processes, reverse=reverse)


def assert_same_steps(plan: CompiledPlan, batches: list[Any], processes: int) -> InTurn:
    """Whoever comes first between two meetings."""
    alone = Executable(plan.plan.graphs["train"])
    shared = [in_turn(plan, feeds_of(plan, batches[0], 0), processes, reverse=each) for each in (False, True)]
    assert_sums_lie_once(shared[0])
    for step, batch in enumerate(batches):
        feeds = feeds_of(plan, batch, step)
        right = alone.run(feeds)
        for each in shared:
            found = each.run(feeds)
            for name, value in right.items():
                np.testing.assert_allclose(found[name], value, rtol=BOUND, atol=BOUND, err_msg=f"{step} {name}")
    return shared[0]


def assert_sums_lie_once(made: InTurn) -> None:
    """Each piece may add to its sums where they lie, and does."""
    found = list[str]()
    for piece in {each for pieces in made.step.cut.pieces[1:] for each in pieces if each.sums}:
        pairs = {sum_name(name, more=True): before(name) for name in piece.sums}
        assert stepped_in_place(piece.data, pairs) == set(pairs.values())
        found += piece.sums
    assert set(found) == made.step.cut.places.keys()
    for program in made.layout.programs():
        for turn in (turn for stage in program.stages for run in stage for turn in run.turns):
            for name in found:
                if before(name) in turn.inputs:
                    assert turn.inputs[before(name)] == turn.outputs[sum_name(name, more=True)]


@pytest.mark.capability("B8")
@pytest.mark.parametrize("case", SHARED, ids="-".join)
def test_b8_two_stages_make_the_step_of_one_process(case: tuple[str, str, str], make_batch: Any) -> None:
    """The last rows weigh nothing, so that the last micro-batches are nothing but padding."""
    batches = [batch_of(make_batch, case[0], seed=seed, real=ROWS - 2) for seed in range(STEPS)]
    assert_same_steps(compiled(*case), batches, 2)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", DEEP)
def test_every_stage_has_a_part_of_the_layers(model: str, optimizer: str, processes: int, make_batch: Any) -> None:
    module, shape, dtype = DEEP[model]
    feature = Feature(name="x", dtype=dtype, shape=shape)  # pyright: ignore[reportArgumentType]
    schema = DataSchema((feature,), Label(name="y", low=0, high=2))
    plan = compile_plan(experiment(model=module, schema=schema, optimizer=OPTIMIZERS[optimizer], batch_size=12))
    batches = [make_batch(shape, dtype=dtype, seed=seed, rows=12, real=11) for seed in range(STEPS)]
    cut = assert_same_steps(plan, batches, processes).step.cut
    assert all(piece.data for piece in cut.pieces[0])
    # A convolution has rows of images beside each other, which stay together.
    assert len(cut.pieces) == (2 if model == "cnn" else {2: 6, 3: 12}[processes])
    assert len(cut.seconds) == processes and all(cut.seconds)


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_what_they_were(method: str, make_batch: Any) -> None:
    algorithm, optimizer = METHODS[method]
    plan = compile_plan(experiment(algorithm=algorithm, optimizer=optimizer))
    assert_same_steps(plan, batches_of(make_batch), 2)


def test_an_inactive_step_returns_the_state_bit_for_bit(make_batch: Any) -> None:
    plan = compiled("conv", "fedprox", "adamw")
    feeds = feeds_of(plan, batch_of(make_batch, "conv"), 0, active=0.0)
    found = in_turn(plan, feeds, 2).run(feeds)
    for output, taken in plan.plan.manifest.stage("train").carry.items():
        assert found[output].tobytes() == feeds[taken].tobytes(), taken


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "rows that are compared": ({"loss": compares}, 2, "takes rows of the batch together"),
    "one layer": ({"model": Sequential(Linear(4, 3))}, 2, "can be cut into 1 stage, not into 2"),
    "two layers": ({}, 3, "can be cut into 2 stages, not into 3"),
    "a batch of 11": ({"batch_size": 11}, 2, "makes no equal micro-batches"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_stages_is_refused_by_name(name: str, make_batch: Any) -> None:
    changes, processes, why = REFUSED[name]
    plan = compile_plan(experiment(**changes))
    rows = changes.get("batch_size", ROWS)
    with pytest.raises(Unspreadable, match=why) as caught:
        in_turn(plan, feeds_of(plan, make_batch((4,), rows=rows), 0), processes)
    assert caught.value.reason == "not_spreadable"


def test_a_batch_norm_is_refused_by_its_node(make_batch: Any) -> None:
    plan = compiled("batch norm", "fedavg", "sgd")
    feeds = feeds_of(plan, batch_of(make_batch, "batch norm"), 0)
    with pytest.raises(Unspreadable, match=r"makes 'Sub_\d+' \(Sub\) needs for each row a sum over the whole batch"):
        in_turn(plan, feeds, 2)


@pytest.mark.parametrize(("dear", "width"), [("batch/x", 5), ("shared/4.weight", 7), ("shared/6.weight", 7)])
def test_stages_are_cut_by_what_operators_cost(
    dear: str, width: int, make_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four layers a dear one shares its process with those that cost least; the loss is with the last."""

    def seconds(data: bytes, feeds: Arrays, threads: int) -> tuple[float, ...]:
        return tuple(1.0 if dear in node.inputs else 0.01 for node in StepGraph(data).nodes)

    monkeypatch.setattr("coterie.compute.runtime.pipeline.operator_times.node_seconds", seconds)
    layers = (Linear(4, 5), ReLU(), Linear(5, 6), ReLU(), Linear(6, 7), ReLU(), Linear(7, 3))
    plan = compile_plan(experiment(model=Sequential(*layers)))
    cut = in_turn(plan, feeds_of(plan, make_batch((4,)), 0), 2).step.cut
    forward = {each.shape[-1] for each in cut.crossings.values() if each.first == 0}
    assert max(forward) == width
