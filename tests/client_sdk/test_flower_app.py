"""Flower's own ``ClientApp``, called by the adapter: needs Flower, so `make test-flower` runs it in an environment
of its own.
"""

import sys
from typing import Any, cast

import numpy as np
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.flower_app import flower_app_trainer
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.errors import ConfigurationError, DataError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate

SCHEMA = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", dtype="float32", low=-100, high=100))
EXPERIMENT = Experiment(
    name="flower-app",
    model=ExternalModel({"weights": (4, 1), "bias": (1,)}, metrics=("error",)),
    schema=SCHEMA,
    batch_size=16,
    epochs=2,
    rounds=RoundPolicy(rounds=15, cohort=4),
)
Vector = np.ndarray[Any, np.dtype[np.float32]]
TRUE = np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)


def rows(seed: int) -> dict[str, Vector]:
    x = np.random.default_rng(seed).standard_normal((64, 4)).astype(np.float32)
    return {"x": x, "y": (x @ TRUE)[:, 0].astype(np.float32)}


CLIENTS = [rows(seed) for seed in range(4)]


def given(message: Any, context: Any) -> tuple[Any, Any, dict[str, Vector]]:
    """The weights and the bias of a message, and the rows of the context's partition."""
    weights, bias = cast(list[Vector], [array.numpy().copy() for array in message.content["arrays"].values()])
    return weights, bias, CLIENTS[int(context.node_config["partition-id"])]


def off(weights: Vector, bias: Vector, data: dict[str, Vector]) -> Vector:
    return data["x"] @ weights + bias - data["y"][:, None]


def regression(flwr: Any, *, arrays: int = 2, silent: bool = False) -> Any:
    """A linear regression as one writes it for Flower; its rows are its own."""
    app = pytest.importorskip("flwr.clientapp").ClientApp()

    def train(message: Any, context: Any) -> Any:
        weights, bias, data = given(message, context)
        calls = context.state.config_records.setdefault("calls", flwr.ConfigRecord({"count": 0}))
        calls["count"] += 1
        for _ in range(message.content["config"]["local-epochs"] * 4):
            error = off(weights, bias, data)
            weights -= 0.1 * data["x"].T @ error / len(error)
            bias -= 0.1 * error.mean(0)
        loss = float(np.square(off(weights, bias, data)).mean())
        content = flwr.RecordDict({"out": flwr.ArrayRecord([weights, bias][:arrays])})
        if not silent:
            content["said"] = flwr.MetricRecord({"train_loss": loss, "error": calls["count"], "num-examples": 64})
        return flwr.Message(content=content, reply_to=message)

    def evaluate(message: Any, context: Any) -> Any:
        error = off(*given(message, context))
        told = {"eval_loss": float(np.square(error).mean()), "error": float(np.abs(error).mean()), "num-examples": 64}
        return flwr.Message(content=flwr.RecordDict({"m": flwr.MetricRecord(told)}), reply_to=message)

    app.train()(train)
    app.evaluate()(evaluate)
    return app


def test_an_app_trains_and_evaluates() -> None:
    flwr = pytest.importorskip("flwr.app")
    trainer = flower_app_trainer(regression(flwr), node_config={"partition-id": 1})
    history = list(simulate(EXPERIMENT, CLIENTS, trainer=trainer))
    assert history[-1].metrics["loss"] < 0.05 < history[0].metrics["loss"]
    assert history[-1].metrics["error"] < 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"arrays": 1}, "1 arrays; the layout has 2: weights, bias"), ({"silent": True}, "0 records of the kind Metric")],
)
def test_what_an_app_answers_is_checked(changes: dict[str, Any], message: str) -> None:
    flwr = pytest.importorskip("flwr.app")
    trainer = flower_app_trainer(regression(flwr, **changes), node_config={"partition-id": 0})
    with pytest.raises(DataError, match=message):
        list(simulate(EXPERIMENT, CLIENTS, trainer=trainer))


def test_no_hyper_parameter_takes_the_place_of_what_the_owner_or_the_adapter_says() -> None:
    flwr = pytest.importorskip("flwr.app")
    heard: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def app(message: Any, context: Any) -> Any:
        heard.append((dict(message.content["config"]), dict(context.run_config)))
        content = flwr.RecordDict(
            {
                "a": message.content["arrays"],
                "m": flwr.MetricRecord({"train_loss": 1.0, "error": 1.0, "num-examples": 64}),
            }
        )
        return flwr.Message(content=content, reply_to=message)

    compiled = compile_plan(EXPERIMENT)
    hyper = {"noise": 0.0, "lr": 0.5, "server-round": 9.0, "local-epochs": 50.0, "batch-size": 1.0}
    work = LocalWork(
        plan=compiled.plan,
        task=LocalTask(experiment="exp", round=3, seed=7, hyper=hyper),
        weights=compiled.initial,
        rows=SCHEMA.check(CLIENTS[0], "rows"),
    )
    flower_app_trainer(app, run_config={"noise": 4.0}).train(work)
    ((config, run_config),) = heard
    own = {"server-round": 3, "local-epochs": 2, "batch-size": 16}
    assert config == {"noise": 0.0, "lr": 0.5, **own}
    assert run_config == {"noise": 4.0, "lr": 0.5, **own}


def test_without_flower_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(ConfigurationError, match="pip install flwr") as caught:
        list(simulate(EXPERIMENT, CLIENTS, trainer=flower_app_trainer(lambda message, context: message)))
    assert caught.value.reason == "flower_missing"
