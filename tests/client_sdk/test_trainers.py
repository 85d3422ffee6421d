"""Trainers: the plan trainer drives graphs as the manifest says, one's own trainer is measured by the same rules."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sdk_kit import SCHEMA, counting, experiment, rows

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.evaluate import evaluate
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import IFCA
from coterie.client_sdk.device.flower import flower_trainer
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork, Stopped, TrainOptions
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.nn import Dropout, Linear, ReLU, Sequential
from coterie.errors import DataError, PlanRefused
from coterie.protocol.rounds import RoundPolicy

TASK = LocalTask(experiment="exp", round=1, seed=7)
ROWS = rows(29)


def work_on(compiled: CompiledPlan, task: LocalTask = TASK) -> LocalWork:
    return LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, frozen=compiled.frozen, rows=ROWS)


def train(compiled: CompiledPlan, task: LocalTask = TASK, **options: Any) -> LocalResult:
    trainer = options.pop("trainer", None) or PlanTrainer()
    state = options.pop("client_state", {})
    return trainer.train(replace(work_on(compiled, task), client_state=state, options=TrainOptions(**options)))


def test_a_task_is_a_function_of_its_arguments_whatever_the_trainer_did_before() -> None:
    compiled = compile_plan(experiment(epochs=2))
    trainer = PlanTrainer()
    first = train(compiled, trainer=trainer)
    train(compiled, LocalTask(experiment="exp", round=2, seed=8), trainer=trainer)
    again = train(compiled, trainer=trainer)
    fresh = train(compiled)
    for name, vector in first.sections.items():
        assert np.array_equal(vector, again.sections[name]) and np.array_equal(vector, fresh.sections[name])
    other = train(compiled, LocalTask(experiment="exp", round=1, seed=8))
    assert not np.array_equal(first.sections["delta"], other.sections["delta"])


def test_steps_weight_and_examples_are_counted() -> None:
    compiled = compile_plan(experiment(epochs=3))
    result = train(compiled)
    assert result.steps == 3 * 4 and result.weight == 29
    assert result.metrics(compiled.plan).examples == 3 * 29
    assert train(compiled, max_steps=5).steps == 5
    assert train(compile_plan(experiment(epochs=3, max_steps=2))).steps == 2
    assert train(compiled, LocalTask(experiment="exp", round=1, seed=7, weight_cap=10)).weight == 10


def test_the_delta_leads_to_a_model_that_fits_the_rows_better() -> None:
    compiled = compile_plan(experiment(epochs=8))
    layout, graphs = compiled.plan.manifest.layout, compiled.plan.graphs
    result = train(compiled)
    trained = layout.unflatten(layout.flatten(compiled.initial) + result.sections["delta"])
    before = evaluate(graphs, compiled.plan.manifest, compiled.initial, ROWS).means()
    after = evaluate(graphs, compiled.plan.manifest, trained, ROWS).means()
    assert after["loss"] < 0.6 * before["loss"] and after["accuracy"] > 0.9


def test_evaluation_is_the_aggregations_own() -> None:
    compiled = compile_plan(experiment())
    got = PlanTrainer().evaluate(work_on(compiled))
    expected = evaluate(compiled.plan.graphs, compiled.plan.manifest, compiled.initial, ROWS)
    assert got == expected and got.examples == 29


def test_hyper_parameters_of_the_task_override_those_of_the_plan() -> None:
    compiled = compile_plan(experiment())
    still = train(compiled, LocalTask(experiment="exp", round=1, seed=7, hyper={"lr": 0.0}))
    assert not still.sections["delta"].any() and train(compiled).sections["delta"].any()


def test_dropout_masks_come_from_the_tasks_seed() -> None:
    model = Sequential(Linear(4, 16), ReLU(), Dropout(0.5), Linear(16, 3))
    compiled = compile_plan(experiment(model=model))
    first, again = train(compiled), train(compiled)
    assert np.array_equal(first.sections["delta"], again.sections["delta"])
    without = train(compile_plan(experiment(model=Sequential(Linear(4, 16), ReLU(), Dropout(0.0), Linear(16, 3)))))
    assert not np.array_equal(first.sections["delta"], without.sections["delta"])


def test_client_state_begins_as_zeros_and_is_handed_from_task_to_task() -> None:
    compiled = compile_plan(experiment(algorithm=counting()))
    first = train(compiled)
    assert first.client_state["counted"].tolist() == [1.0]
    second = train(compiled, client_state=first.client_state)
    assert second.client_state["counted"].tolist() == [2.0]


def test_what_a_step_listener_raises_ends_the_training() -> None:
    compiled = compile_plan(experiment(epochs=5))

    def stop(steps: int) -> None:
        if steps == 3:
            raise Stopped()

    trainer = PlanTrainer()
    with pytest.raises(Stopped):
        train(compiled, trainer=trainer, on_step=stop)
    assert np.array_equal(train(compiled, trainer=trainer).sections["delta"], train(compiled).sections["delta"])


def test_a_listener_may_end_the_pass_before_training_too() -> None:
    """Of a method that looks at all rows first."""
    heard: list[int] = []
    compiled = compile_plan(experiment(algorithm=IFCA(2)))

    def stop(steps: int) -> None:
        heard.append(steps)
        if len(heard) == 2:
            raise Stopped()

    with pytest.raises(Stopped):
        train(compiled, on_step=stop)
    assert heard == [0, 0]
    heard.clear()
    train(compiled, on_step=heard.append)
    assert heard == [0] * heard.count(0) + list(range(1, heard[-1] + 1)) and heard.count(0) > 1


# Bring your own.


def external(metrics: tuple[str, ...] = ("accuracy",)) -> Experiment:
    return Experiment(
        name="own",
        model=ExternalModel({"w": (4, 3), "b": (3,)}, metrics=metrics),
        schema=SCHEMA,
        rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
        epochs=2,
        batch_size=8,
    )


def fit(params: Params, task: FitTask) -> FitResult:
    params["w"] += 1.0
    return {"w": params["w"], "b": params["b"] - 0.5}, 29, 4, {"loss": 0.5, "accuracy": 0.25}


def test_the_update_of_a_fit_is_the_difference_it_made_and_its_means_become_sums() -> None:
    compiled = compile_plan(external())
    result = train(compiled, trainer=ExternalTrainer(fit))
    layout = compiled.plan.manifest.layout
    delta = layout.unflatten(np.asarray(result.sections["delta"], np.float32))
    assert (delta["w"] == 1).all() and (delta["b"] == -0.5).all()
    assert not compiled.initial["w"].any(), "fit gets copies"
    assert result.metrics(compiled.plan).sums == {"examples": 29.0, "loss": 14.5, "accuracy": 7.25}
    assert (result.weight, result.steps) == (29, 4)
    assert result.finite == {"delta"}


def wrong(**changes: Any) -> ExternalTrainer:
    def altered(params: Params, task: FitTask) -> Any:
        values = {"params": params, "weight": 3, "steps": 1, "metrics": {}} | changes
        return values["params"], values["weight"], values["steps"], values["metrics"]

    return ExternalTrainer(altered)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (wrong(params={"w": np.zeros((4, 3)), "misspelt": np.zeros(3)}), "no parameter 'b'"),
        (wrong(params={"w": np.zeros((3, 4)), "b": np.zeros(3)}), r"'w' with shape \[3, 4\]"),
        (wrong(params={"w": np.full((4, 3), np.nan), "b": np.zeros(3)}), "'w' with values that are not finite"),
        (wrong(weight=-1), "weight must be a whole number"),
        (wrong(weight=1.5), "weight must be a whole number"),
        (wrong(metrics={"loss": 1.0}), "metric 'accuracy' is missing"),
    ],
)
def test_what_a_fit_returns_is_checked_by_name(trainer: ExternalTrainer, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(compile_plan(external()), trainer=trainer)


def test_a_trainer_of_ones_own_cannot_replace_a_plans_step() -> None:
    with pytest.raises(PlanRefused, match="brings its own training step"):
        train(compile_plan(experiment()), trainer=ExternalTrainer(fit))


def test_without_an_evaluate_function_an_evaluation_is_refused() -> None:
    compiled = compile_plan(external())
    with pytest.raises(PlanRefused, match="no evaluate function"):
        ExternalTrainer(fit).evaluate(work_on(compiled))


class Client:
    """As one writes it for Flower, without importing anything of it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.configs: list[dict[str, Any]] = []

    def get_parameters(self, config: dict[str, Any]) -> list[NDArray[Any]]:
        raise AssertionError("not needed")

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[Sequence[NDArray[Any]], int, Any]:
        self.configs.append(config)
        return [parameter + 2 for parameter in parameters], self.count, {"loss": 0.5, "accuracy": 1, "note": "text"}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, Any]:
        return float(parameters[1].sum()), self.count, {"accuracy": 0.5}


def test_a_flower_style_client_is_driven_through_its_lists() -> None:
    compiled = compile_plan(external())
    client = Client(29)
    result = train(compiled, trainer=flower_trainer(client))
    assert (result.sections["delta"] == 2).all() and result.weight == 29 and result.steps == 8
    assert result.metrics(compiled.plan).means() == {"loss": 0.5, "accuracy": 1.0}
    assert client.configs[0]["server_round"] == 1 and client.configs[0]["local_epochs"] == 2
    sums = flower_trainer(client).evaluate(work_on(compiled))
    assert sums.means() == {"loss": 0.0, "accuracy": 0.5} and sums.examples == 29


def test_no_hyper_parameter_takes_the_place_of_what_a_device_tells_a_flower_style_client() -> None:
    """Under secure aggregation the seed is the device's own, so that nobody else chooses what its dropout silences."""
    client = Client(29)
    told = {"seed": 1.0, "server_round": 9.0, "local_epochs": 50.0, "batch_size": 1.0, "lr": 0.5}
    task = LocalTask(experiment="exp", round=1, seed=7, hyper=told)
    train(compile_plan(external()), task, trainer=flower_trainer(client))
    config = client.configs[0]
    assert (config["seed"], config["server_round"], config["local_epochs"], config["lr"]) == (7, 1, 2, 0.5)
    assert config["batch_size"] != 1


def test_lists_are_in_the_layouts_order_whatever_the_order_of_the_weights() -> None:
    compiled = compile_plan(external())
    shuffled = {name: compiled.initial[name] for name in reversed(compiled.initial)}
    shapes: list[tuple[int, ...]] = []

    class Looking(Client):
        def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Any:
            shapes.extend(parameter.shape for parameter in parameters)
            return super().fit(parameters, config)

    flower_trainer(Looking(29)).train(replace(work_on(compiled), weights=shuffled))
    assert shapes == [(4, 3), (3,)]


def test_a_factory_makes_a_client_from_the_tasks_rows() -> None:
    def made(task: FitTask) -> Client:
        return Client(len(task.rows["y"]))

    assert train(compile_plan(external()), trainer=flower_trainer(made)).weight == 29


def test_a_client_that_returns_too_few_arrays_is_told_the_layout() -> None:
    class Short(Client):
        def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Any:
            return parameters[:1], 3, {}

    with pytest.raises(DataError, match="returned 1 arrays; the layout has 2: w, b"):
        train(compile_plan(external()), trainer=flower_trainer(Short(3)))
