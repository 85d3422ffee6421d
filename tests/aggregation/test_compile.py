"""From experiment to plan: determinism and wiring."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.evaluate import evaluate
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import FedProx
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn import Dropout, Embedding, Linear, MeanPool, ReLU, Sequential
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.losses import mean_squared_error
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.optim import adam, sgd
from coterie.compute.runtime.executable import Executable
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.signing import SigningKey
from coterie.protocol.tensors import decode_tensors

Make = Callable[..., Experiment]


def test_the_same_experiment_gives_the_same_plan(make_experiment: Make) -> None:
    plans = [compile_plan(make_experiment(algorithm=FedProx(0.1), optimizer=adam())) for _ in range(2)]
    assert plans[0].plan.id == plans[1].plan.id
    assert plans[0].plan.graphs == plans[1].plan.graphs
    assert plans[0].initial_bytes == plans[1].initial_bytes


def test_another_seed_changes_the_weights_but_not_the_plan(make_experiment: Make) -> None:
    first, second = (compile_plan(make_experiment(seed=seed)) for seed in (0, 1))
    assert first.plan.id == second.plan.id and first.initial_bytes != second.initial_bytes


def test_a_plan_carries_nothing_of_the_machine_that_made_it(make_experiment: Make) -> None:
    plan = compile_plan(make_experiment()).plan
    for data in (plan.manifest.data, *plan.graphs.values()):
        assert b".py" not in data and b"/home" not in data


def test_a_compiled_plan_passes_the_check(make_experiment: Make) -> None:
    key = SigningKey.generate()
    model = Sequential(Linear(4, 8), ReLU(), Dropout(0.5), Linear(8, 3))
    plan = compile_plan(make_experiment(model=model, optimizer=sgd(0.1, momentum=0.9))).plan.sign(key)
    checked = check_plan(
        plan.manifest.data, plan.graphs, signature=plan.signature, signer=plan.signer, allowed_signers=[key.public]
    )
    assert checked.id == plan.id == sha256_hex(plan.manifest.data)
    assert checked.manifest == plan.manifest == Manifest.from_bytes(plan.manifest.data)


def test_every_tensor_has_a_role_and_a_source(make_experiment: Make) -> None:
    model = Sequential(Linear(4, 8), ReLU(), Dropout(0.5), Linear(8, 3))
    manifest = compile_plan(
        make_experiment(model=model, optimizer=sgd(0.1, momentum=0.9), algorithm=FedProx())
    ).plan.manifest
    train = {tensor.name: tensor for tensor in manifest.stage("train").inputs}
    expected = {
        "shared/0.weight": ("shared", "state"),
        "base/0.weight": ("round_input", "model"),
        "optimizer/0.weight.momentum": ("optimizer", "zeros"),
        "hyper/lr": ("hyper", "hyper"),
        "hyper/mu": ("hyper", "hyper"),
        "hyper/active": ("hyper", "active"),
        "random/0": ("random", "random"),
        "batch/x": ("batch", "batch"),
        "batch/y": ("batch", "batch"),
        "batch/sample_weight": ("batch", "batch"),
        "metric/loss": ("metric", "zeros"),
        "metric/examples": ("metric", "zeros"),
        "metric/accuracy": ("metric", "zeros"),
    }
    assert {name: (train[name].role, train[name].source) for name in expected} == expected
    assert manifest.stage("train").carry["next/shared/0.weight"] == "shared/0.weight"
    assert train["random/0"].shape == (6, 8)
    assert dict(manifest.hyper) == {"lr": 0.1, "momentum": 0.9, "mu": 0.01}
    assert [spec.name for spec in manifest.sections_for("train")] == ["delta", "metrics"]
    assert [spec.name for spec in manifest.sections_for("evaluate")] == ["metrics", "clients"]


def test_a_plan_updates_small_tensors_together(make_experiment: Make, make_batch: Any, drive: Any) -> None:
    """Adam's state is one vector for each moment, and the weights move as they do one by one."""
    model = Sequential(Linear(4, 8), ReLU(), Linear(8, 3))
    compiled = compile_plan(make_experiment(model=model, optimizer=adam(0.1)))
    train = {tensor.name: tensor for tensor in compiled.plan.manifest.stage("train").inputs}
    assert [
        (train[f"optimizer/packed.{what}"].shape, train[f"optimizer/packed.{what}"].source)
        for what in ("first", "second")
    ] == [((67,), "zeros")] * 2
    driven = drive(compiled.plan, compiled.initial, [make_batch(real=4)])
    # The first step of Adam moves every weight that has a gradient by the rate.
    moved = np.concatenate(
        [(driven.state[f"shared/{name}"] - value).reshape(-1) for name, value in compiled.initial.items()]
    )
    assert set(np.unique(np.round(np.abs(moved), 4))) <= {np.float32(0.0), np.float32(0.1)} and np.abs(moved).max() > 0


def test_the_gradient_step_is_that_of_the_formula(make_experiment: Make, make_batch: Any, drive: Any) -> None:
    """One linear layer, mean squared error, plain gradient descent: all in closed form."""
    schema = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", dtype="float32"))
    experiment = make_experiment(
        model=Linear(4, 1), schema=schema, loss=mean_squared_error, metrics={}, optimizer=sgd(0.1)
    )
    compiled = compile_plan(experiment)
    batch = make_batch(real=4)
    batch["y"] = np.linspace(-1, 1, 6).astype(np.float32)
    driven = drive(compiled.plan, compiled.initial, [batch])
    x, y = batch["x"][:4].astype(np.float64), batch["y"][:4]
    weight, bias = (compiled.initial[name].astype(np.float64) for name in ("weight", "bias"))
    weight = weight.reshape(4, 1)
    residual = (x @ weight + bias)[:, 0] - y
    expected = weight[:, 0] - 0.1 * 2 * (x * residual[:, None]).mean(0)
    np.testing.assert_allclose(driven.state["shared/weight"].reshape(-1), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(driven.state["metric/loss"], (residual**2).sum(), rtol=1e-5)
    assert driven.state["metric/examples"] == 4
    manifest = compiled.plan.manifest
    delta = manifest.layout.flatten(
        {n: driven.state[f"shared/{n}"] - compiled.initial[n] for n in manifest.layout.names}
    )
    np.testing.assert_array_equal(driven.upload["delta"], delta)
    np.testing.assert_array_equal(driven.upload["metrics"], [4, driven.state["metric/loss"][0]])


@pytest.mark.parametrize(
    ("dtype", "offset", "scale"), [("uint8", 0.0, 1 / 16), ("int32", 3.0, 0.5), ("float32", 1.0, 2.0)]
)
def test_normalisation_is_inside_the_graphs(make_experiment: Make, dtype: str, offset: float, scale: float) -> None:
    rows = {"x": np.arange(24).reshape(6, 4).astype(dtype), "y": np.zeros(6, np.int32)}
    raw = DataSchema((Feature(name="x", dtype=dtype, shape=(4,), offset=offset, scale=scale),), Label(name="y"))  # pyright: ignore[reportArgumentType]
    ready = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y"))
    by_graph, by_hand = (compile_plan(make_experiment(schema=schema)) for schema in (raw, ready))
    means = evaluate(by_graph.plan.graphs, by_graph.plan.manifest, by_graph.initial, rows).means()
    normalised = {"x": ((rows["x"].astype(np.float32) - offset) * scale).astype(np.float32), "y": rows["y"]}
    assert means == pytest.approx(
        evaluate(by_hand.plan.graphs, by_hand.plan.manifest, by_hand.initial, normalised).means(), rel=1e-6
    )


def test_normalisation_per_element(make_experiment: Make) -> None:
    offsets, scales = (1.0, 2.0, 3.0, 4.0), (0.5, 1.0, 2.0, 4.0)
    schema = DataSchema((Feature(name="x", shape=(4,), offset=offsets, scale=scales),), Label(name="y"))
    plain = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y"))
    raw, ready = (compile_plan(make_experiment(schema=each)) for each in (schema, plain))
    weights = {f"shared/{name}": array for name, array in raw.initial.items()}
    x = np.array([[5, 6, 7, 8]], np.float32)
    by_hand = ((x - np.array(offsets, np.float32)) * np.array(scales, np.float32)).astype(np.float32)
    output, expected = (
        Executable(compiled.plan.graphs["infer"]).run(weights | {"batch/x": rows})["output"]
        for compiled, rows in ((raw, x), (ready, by_hand))
    )
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    assert not np.allclose(by_hand, x)


def test_ids_reach_an_embedding_untouched(make_experiment: Make) -> None:
    schema = DataSchema((Feature(name="x", dtype="int32", shape=(5,), low=0, high=9),), Label(name="y"))
    experiment = make_experiment(schema=schema, model=Sequential(Embedding(10, 4), MeanPool(), Linear(4, 3)))
    train = compile_plan(experiment).plan.manifest.stage("train")
    assert next(t.dtype for t in train.inputs if t.name == "batch/x") == "int32"


@dataclass(frozen=True)
class TwoInputs(Module):
    """Adds what two features say; keeps one table frozen."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {
            "a": ParameterSpec((4, 3), Constant(0.0)),
            "table": ParameterSpec((2, 3), Constant(1.0), "frozen"),
            "b": ParameterSpec((2, 3), Constant(0.0)),
        }

    def __call__(self, params: Parameters, x: Any, mode: Mode = EVAL) -> Array:
        named: Mapping[str, Array] = x
        return xp.matmul(named["x"], params["a"]) + xp.matmul(named["z"], params["b"] + params["table"])


def test_several_features_and_frozen_parameters(make_experiment: Make, make_batch: Any, drive: Any) -> None:
    schema = DataSchema((Feature(name="x", shape=(4,)), Feature(name="z", shape=(2,))), Label(name="y"))
    compiled = compile_plan(make_experiment(schema=schema, model=TwoInputs()))
    manifest = compiled.plan.manifest
    assert manifest.layout.names == ("a", "b") and manifest.frozen is not None
    assert compiled.frozen_bytes is not None and manifest.frozen.sha256 == sha256_hex(compiled.frozen_bytes)
    frozen = decode_tensors(compiled.frozen_bytes)
    batch = make_batch() | {"z": np.ones((6, 2), np.float32)}
    driven = drive(compiled.plan, compiled.initial, [batch], frozen=frozen)
    assert driven.upload["delta"].shape == (18,) and np.any(driven.upload["delta"])
    rows = {name: batch[name] for name in ("x", "z", "y")}
    sums = evaluate(compiled.plan.graphs, manifest, compiled.initial, rows, frozen=frozen)
    assert sums.examples == 6
    with pytest.raises(errors.InputError, match="frozen"):
        evaluate(compiled.plan.graphs, manifest, compiled.initial, rows)


def test_infer_runs_alone_with_its_weights_inside(make_experiment: Make) -> None:
    compiled = compile_plan(make_experiment(infer_batch=2))
    data = embed_weights(
        compiled.plan.graphs["infer"], {f"shared/{name}": array for name, array in compiled.initial.items()}
    )
    alone = Executable(data)
    assert [(tensor.name, tensor.shape) for tensor in alone.inputs] == [("batch/x", (2, 4))]
    assert alone.run({"batch/x": np.ones((2, 4), np.float32)})["output"].shape == (2, 3)


def test_an_external_plan_has_a_layout_and_no_graph() -> None:
    model = ExternalModel({"coef": (3, 4), "intercept": (3,)}, metrics=("accuracy",))
    schema = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y"))
    experiment = Experiment(
        name="own", model=model, schema=schema, rounds=RoundPolicy(rounds=1, cohort=1, min_updates=1)
    )
    compiled = compile_plan(experiment)
    manifest = compiled.plan.manifest
    assert (manifest.trainer, manifest.stages, manifest.layout.size) == ("external", (), 15)
    assert manifest.metrics == ("examples", "loss", "accuracy")
    with pytest.raises(errors.PlanRefused, match="trainer of your own"):
        manifest.stage("train")
    plan = compiled.plan.sign(key := SigningKey.generate())
    check_plan(plan.manifest.data, {}, signature=plan.signature, signer=plan.signer, allowed_signers={key.public})


def test_a_server_or_device_never_loads_the_compiler() -> None:
    """What a coordinator and a device need of aggregation must not bring the tracing compiler with it."""
    modules = "engine progress history aggregate evaluate plan.bundle plan.check plan.manifest horizontal".split()
    code = (
        "import sys\n"
        + "".join(f"import coterie.aggregation.{module}\n" for module in modules)
        + "heavy = [m for m in sys.modules if m.startswith(('coterie.compute.trace', 'coterie.compute.autodiff', "
        "'coterie.compute.passes', 'coterie.compute.nn', 'coterie.compute.array', 'coterie.aggregation.experiment'))]\n"
        "print(*heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "")


SCRIPT = """
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import FedProx
from coterie.aggregation.compiling.compile import compile_plan
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import adamw
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

schema = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y"))
experiment = Experiment(
    name="same", model=mlp((4, 5, 3)), schema=schema, rounds=RoundPolicy(rounds=1, cohort=1, min_updates=1),
    loss=softmax_cross_entropy, optimizer=adamw(), algorithm=FedProx(), metrics={"accuracy": accuracy},
)
print(compile_plan(experiment).plan.id)
"""


def test_every_process_makes_the_same_plan() -> None:
    """Neither the order of sets nor where the script lies may show in a plan."""
    done = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    assert done[0].stdout == done[1].stdout and len(done[0].stdout.strip()) == 64
