"""Whole training steps of whole models: traced, written as ONNX, checked, stepped by StepLoop, and held against the
NumPy reference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.data.batches import Batches
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.losses import huber, mean_squared_error, softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.reference import evaluate
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named


@dataclass(frozen=True)
class Case:
    model: nn.Module
    optimizer: optim.Optimizer
    x: NDArray
    y: NDArray
    batch: int = 4
    loss: Callable[[Array, Array], Array] = softmax_cross_entropy


rng = np.random.default_rng(12)
CLASSES = rng.integers(0, 10, 18).astype(np.int32)
# Every class has a picture of its own under noise, so that there is something to learn.
PICTURES = (rng.normal(size=(10, 1, 28, 28))[CLASSES] + 0.3 * rng.normal(size=(18, 1, 28, 28))).astype(np.float32)
IDS = rng.integers(0, 20, (18, 6)).astype(np.int32)
ROWS = rng.normal(size=(18, 20)).astype(np.float32)
DROPPED = nn.Sequential(nn.Linear(20, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 1))

BENT = nn.Sequential(
    nn.Linear(20, 16), nn.LeakyReLU(), nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 8), nn.ELU(), nn.Linear(8, 1)
)
SEQUENCES = nn.Sequential(
    nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 4, 2, groups=2), nn.AvgPool1d(2),
    nn.Flatten(), nn.Linear(8, 3),
)  # fmt: skip
VOLUMES = nn.Sequential(
    nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 4, 2, padding=(0, 1, 1)),
    nn.AvgPool3d((1, 2, 2)), nn.Flatten(), nn.Linear(4, 3),
)  # fmt: skip
WEIGHED = partial(softmax_cross_entropy, class_weights=[1.0, 2.0, 0.5], label_smoothing=0.1)

CASES = {
    "bent, huber, nadam": Case(BENT, optim.nadam(0.01), ROWS, ROWS[:, 1].copy(), loss=huber),
    "weighed and smoothed, rmsprop": Case(
        nn.zoo.mlp([20, 8, 3]), optim.rmsprop(0.01), ROWS, (ROWS[:, 0] > 0).astype(np.int32), loss=WEIGHED
    ),
    "mlp": Case(nn.zoo.mlp([20, 16, 8, 3]), optim.sgd(0.2, momentum=0.9), ROWS, (ROWS[:, 0] > 0).astype(np.int32)),
    "sequences": Case(SEQUENCES, optim.adam(0.01), ROWS.reshape(18, 2, 10), (ROWS[:, 0] > 0).astype(np.int32)),
    "volumes": Case(VOLUMES, optim.adam(0.01), ROWS[:, :16].reshape(18, 1, 4, 2, 2), (ROWS[:, 0] > 0).astype(np.int32)),
    "lenet": Case(nn.zoo.lenet(), optim.adam(2e-3), PICTURES, CLASSES),
    "fedavg_cnn": Case(nn.zoo.fedavg_cnn(), optim.sgd(0.02), PICTURES, CLASSES),
    "embedding": Case(
        nn.zoo.embedding_classifier(20, 8, 2, hidden=8), optim.adamw(0.02), IDS, (IDS[:, 0] > 9).astype(np.int32)
    ),
    "regression with dropout": Case(DROPPED, optim.adam(0.01), ROWS, ROWS[:, 1].copy(), loss=mean_squared_error),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
Dict = dict[str, NDArray]


def first_state(case: Case) -> Dict:
    params = case.model.init(4)
    state = case.optimizer.init({name: Array(array) for name, array in params.items()})
    return {f"shared/{name}": array for name, array in params.items()} | {
        f"optimizer/{name}": array.numpy() for name, array in state.items()
    }


def under(inputs: GraphInputs, role: str) -> dict[str, Array]:
    return {name.removeprefix(role): array for name, array in inputs.items() if name.startswith(role)}


def train_graph(case: Case) -> Graph:
    def step(inputs: GraphInputs) -> dict[str, Array]:
        asked: list[tuple[int, ...]] = []

        def uniform(shape: tuple[int, ...]) -> Array:
            asked.append(shape)
            return inputs.request(f"random/{len(asked) - 1}", TensorSpec(shape))

        weight = inputs["batch/sample_weight"] / xp.maximum(xp.sum(inputs["batch/sample_weight"]), 1.0)

        def loss(params: dict[str, Array]) -> Array:
            prediction = case.model(params, inputs["batch/x"], nn.train(uniform))
            return xp.sum(case.loss(prediction, inputs["batch/y"]) * weight)

        value, gradients = value_and_grad(loss)(under(inputs, "shared/"))
        moved, after = case.optimizer.update(
            gradients,
            under(inputs, "optimizer/"),
            under(inputs, "shared/"),
            under(inputs, "hyper/"),
            inputs["hyper/active"],
        )
        state = {f"shared/{name}": array for name, array in moved.items()} | {
            f"optimizer/{name}": array for name, array in after.items()
        }
        return {f"next/{name}": array for name, array in state.items()} | {"metric/loss": value}

    specs = {name: TensorSpec(array.shape) for name, array in first_state(case).items()}
    specs |= {f"hyper/{name}": TensorSpec((1,)) for name in (*case.optimizer.hyper, "active")}
    specs |= {
        "batch/x": TensorSpec((case.batch, *case.x.shape[1:]), case.x.dtype.name),
        "batch/y": TensorSpec((case.batch,), case.y.dtype.name),
        "batch/sample_weight": TensorSpec((case.batch,)),
    }
    return trace_named(step, specs)


def feeds_of(case: Case, graph: Graph, epochs: int, active: float = 1.0):
    noise = np.random.default_rng(9)
    hyper = {
        f"hyper/{name}": np.array([value], np.float32)
        for name, value in {**case.optimizer.hyper, "active": active}.items()
    }
    random = {name: value.type.shape for name, value in graph.inputs.items() if name.startswith("random/")}
    for item in Batches({"x": case.x, "y": case.y}, batch_size=case.batch, seed=1, epochs=epochs):
        batch = {f"batch/{name}": array for name, array in item.items()}
        yield batch | hyper | {name: noise.uniform(size=shape).astype(np.float32) for name, shape in random.items()}


def loop_of(case: Case, data: bytes) -> StepLoop:
    state = first_state(case)
    return StepLoop(Executable(data), carry={f"next/{name}": name for name in state}, constants={}, state=state)


@each
def test_a_step_is_the_same_in_the_loop_and_in_the_reference(case: Case):
    graph = train_graph(case)
    loop = loop_of(case, to_onnx(optimise(graph), name="train"))
    state = first_state(case)
    for feeds in list(feeds_of(case, graph, epochs=1))[-3:]:
        outputs = evaluate(graph, state | feeds)
        loop.step(feeds)
        assert loop.read(["metric/loss"])["metric/loss"] == pytest.approx(outputs["metric/loss"], rel=1e-4, abs=1e-6)
        now = loop.state()
        for name in state:
            expected = outputs[f"next/{name}"]
            # Adam divides by the root of a squared gradient: where that is tiny, rounding decides the direction of a
            # step of the size lr.
            loose = case.optimizer.name != "sgd"
            np.testing.assert_allclose(now[name], expected, rtol=1e-3, atol=5e-3 if loose else 2e-5, err_msg=name)
        state = now


@each
def test_training_lowers_the_loss(case: Case):
    graph = train_graph(case)
    loop = loop_of(case, to_onnx(optimise(graph), name="train"))
    losses: list[float] = []
    for feeds in feeds_of(case, graph, epochs=12):
        loop.step(feeds)
        losses.append(loop.read(["metric/loss"])["metric/loss"].item())
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


@each
def test_an_inactive_step_changes_no_bit(case: Case):
    graph = train_graph(case)
    loop = loop_of(case, to_onnx(optimise(graph), name="train"))
    for feeds in list(feeds_of(case, graph, epochs=1))[:2]:
        loop.step(feeds)
    before = loop.state()
    loop.step(next(feeds_of(case, graph, epochs=1, active=0.0)))
    for name, array in loop.state().items():
        assert array.tobytes() == before[name].tobytes(), name


@each
def test_padding_has_no_say(case: Case):
    """What the padded rows hold changes nothing, and a batch of nothing but padding gives a loss of zero and finite
    state.
    """
    graph = train_graph(case)
    data = to_onnx(optimise(graph), name="train")
    feeds = list(feeds_of(case, graph, epochs=1))[-1]
    assert feeds["batch/sample_weight"].sum() < case.batch
    other = feeds | {
        "batch/x": np.where(
            np.arange(case.batch).reshape(-1, *[1] * (case.x.ndim - 1)) < 2, feeds["batch/x"], feeds["batch/x"][::-1]
        )
    }
    left, right = loop_of(case, data), loop_of(case, data)
    left.step(feeds)
    right.step(other)
    for name, array in left.state().items():
        np.testing.assert_allclose(array, right.state()[name], rtol=1e-4, atol=1e-6)
    left.step(feeds | {"batch/sample_weight": np.zeros(case.batch, np.float32)})
    assert left.read(["metric/loss"])["metric/loss"] == 0
    assert all(np.isfinite(array).all() for array in left.state().values())


@each
def test_the_step_passes_the_checker_and_is_small(case: Case):
    data = to_onnx(optimise(train_graph(case)), name="train")
    summary = check_graph(data)
    assert summary.opset == 17 and summary.ir_version == 8
    assert len(data) < 100_000
    assert {tensor.name for tensor in summary.outputs} == {f"next/{name}" for name in first_state(case)} | {
        "metric/loss"
    }


@each
def test_inference_with_embedded_weights_equals_the_model(case: Case):
    specs = {f"shared/{name}": TensorSpec(spec.shape) for name, spec in case.model.specs().items()}
    specs["batch/x"] = TensorSpec((case.batch, *case.x.shape[1:]), case.x.dtype.name)
    graph = optimise(
        trace_named(lambda inputs: {"output": case.model(under(inputs, "shared/"), inputs["batch/x"])}, specs)
    )
    weights = case.model.init(4)
    alone = Executable(
        embed_weights(to_onnx(graph, name="infer"), {f"shared/{name}": array for name, array in weights.items()})
    )
    assert [tensor.name for tensor in alone.inputs] == ["batch/x"]
    x = case.x[: case.batch]
    expected = case.model({name: Array(array) for name, array in weights.items()}, Array(x)).numpy()
    np.testing.assert_allclose(alone.run({"batch/x": x})["output"], expected, rtol=1e-4, atol=1e-5)


def test_metrics_run_in_a_graph():
    specs = {"logits": TensorSpec((4, 3)), "labels": TensorSpec((4,), "int32")}
    data = to_onnx(trace_named(lambda i: {"accuracy": accuracy(i["logits"], i["labels"])}, specs), name="eval")
    check_graph(data)
    logits = np.array([[1, 2, 3], [3, 2, 1], [1, 1, 0], [0, 0, 0]], np.float32)
    values = Executable(data).run({"logits": logits, "labels": np.array([2, 2, 1, 0], np.int32)})["accuracy"]
    np.testing.assert_allclose(values, [1, 0, 0.5, 1 / 3], rtol=1e-6)
