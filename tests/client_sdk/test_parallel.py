"""A device whose trainings several processes share: the same updates, and what its owner is told."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import Lab, experiment, hear, rows, run

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import FedProx, Scaffold
from coterie.client_sdk.device.parallel import KEPT_PLANS, DeviceParallel
from coterie.client_sdk.device.policy import DevicePolicy, memory_needed
from coterie.client_sdk.device.policy_file import read_policy
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds
from coterie.compute import nn
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import adam, clipped, sgd
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.spread.asked import Parallel
from coterie.compute.runtime.spread.team import ProcessLost
from coterie.errors import ConfigurationError
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from tests.compute.spread.test_processes import is_running, soon

TASK = LocalTask(experiment="exp", round=1, seed=7)
# Of its weights, processes move a stretch each.
WIDE = nn.Sequential(nn.Linear(4, 4100), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4100, 3))
NORMED = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
PRIVATE = ExampleLevel(clip=0.5, delta=1e-5, noise_multiplier=0.9, rows=29)
EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    "sgd": lambda: experiment(epochs=2),
    "adam, wide, dropout": lambda: experiment(model=WIDE, optimizer=adam(0.001)),
    "clipped momentum": lambda: experiment(epochs=2, optimizer=clipped(sgd(0.1, momentum=0.9), 0.1)),
    "fedprox": lambda: experiment(epochs=2, algorithm=FedProx(0.5)),
    "scaffold": lambda: experiment(epochs=2, algorithm=Scaffold(clients=3)),
    "batch norm": lambda: experiment(epochs=2, model=NORMED),
    "private rows": lambda: experiment(
        privacy=PRIVATE, rounds=RoundPolicy(rounds=2, cohort=1, weight_cap=1, evaluate_every=0)
    ),
}


class Bytes:
    """Entropy that is the same each time."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(5)

    def __call__(self, count: int) -> bytes:
        return self._random.bytes(count)


def work_on(compiled: CompiledPlan, **options: Any) -> LocalWork:
    given = TrainOptions(entropy=Bytes(), **options)
    return LocalWork(
        plan=compiled.plan,
        task=TASK,
        weights=compiled.initial,
        frozen=compiled.frozen,
        rows=rows(29),
        options=given,
    )


def assert_same(found: LocalResult, right: LocalResult) -> None:
    assert (found.steps, found.weight) == (right.steps, right.weight)
    for group, other in ((found.sections, right.sections), (found.client_state, right.client_state)):
        assert group.keys() == other.keys()
        for name, value in other.items():
            np.testing.assert_allclose(group[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.capability("B8")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_b8_two_processes_make_the_update_of_one(name: str) -> None:
    compiled = compile_plan(EXPERIMENTS[name]())
    shared = DeviceParallel(Parallel(2))
    found = PlanTrainer(parallel=shared).train(work_on(compiled))
    assert [(news.state, news.processes) for news in shared.news()] == [("chosen", 2)]
    shared.close()
    assert_same(found, PlanTrainer().train(work_on(compiled)))


@pytest.mark.capability("B8")
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ("batch norm", "private rows")])
def test_b8_two_stages_make_the_update_of_one_process(name: str) -> None:
    compiled = compile_plan(EXPERIMENTS[name]())
    shared = DeviceParallel(Parallel(2, layers=True))
    found = PlanTrainer(parallel=shared).train(work_on(compiled))
    assert [(news.state, news.processes, news.layers) for news in shared.news()] == [("chosen", 2, True)]
    shared.close()
    assert_same(found, PlanTrainer().train(work_on(compiled)))


def test_what_has_no_stages_is_trained_by_one_process_and_the_owner_is_told_why() -> None:
    compiled = compile_plan(EXPERIMENTS["batch norm"]())
    shared = DeviceParallel(Parallel(2, layers=True))
    found = PlanTrainer(parallel=shared).train(work_on(compiled))
    (news,) = shared.news()
    assert (news.state, news.processes, news.layers) == ("refused", 1, False)
    assert "a sum over the whole batch, as BatchNorm" in news.reason
    right = PlanTrainer().train(work_on(compiled))
    assert all(value.tobytes() == right.sections[name].tobytes() for name, value in found.sections.items())


def test_processes_are_kept_for_the_plan_and_ended_for_another() -> None:
    first, second = compile_plan(experiment()), compile_plan(experiment(optimizer=adam(0.1)))
    shared = DeviceParallel(Parallel(2))
    trainer, held = PlanTrainer(parallel=shared), list[tuple[int, ...]]()
    for compiled in (first, first, second):
        trainer.train(work_on(compiled))
        loop = shared._spare  # pyright: ignore[reportPrivateUsage]  whose processes are looked at
        assert loop is not None
        held.append(loop.processes)
    assert held[0] == held[1] != held[2]
    assert soon(lambda: not is_running(held[0][0])) and is_running(held[2][0])
    shared.close()
    assert soon(lambda: not is_running(held[2][0]))


@pytest.mark.parametrize("layers", [False, True])
def test_a_lost_process_ends_the_training_and_the_next_is_made_by_one(layers: bool) -> None:
    compiled = compile_plan(experiment(epochs=2))
    shared = DeviceParallel(Parallel(2, layers=layers))
    trainer = PlanTrainer(parallel=shared)
    trainer.train(work_on(compiled))
    loop = shared._spare  # pyright: ignore[reportPrivateUsage]  whose process is killed
    assert loop is not None
    (process,) = loop.processes

    def kill(steps: int) -> None:
        if steps == 2:
            os.kill(process, signal.SIGKILL)

    with pytest.raises(ProcessLost):
        trainer.train(work_on(compiled, on_step=kill))
    assert [news.state for news in shared.news()] == ["chosen", "lost"]
    found = trainer.train(work_on(compiled))
    right = PlanTrainer().train(work_on(compiled))
    assert all(value.tobytes() == right.sections[name].tobytes() for name, value in found.sections.items())
    assert shared.news() == []


def test_a_training_that_is_stopped_leaves_no_process() -> None:
    shared, processes = DeviceParallel(Parallel(2)), list[int]()
    trainer = PlanTrainer(parallel=shared)

    def stop(steps: int) -> None:
        processes.extend(_children())
        raise KeyboardInterrupt

    before = set(_children())
    with pytest.raises(KeyboardInterrupt):
        trainer.train(work_on(compile_plan(experiment()), on_step=stop))
    mine = set(processes) - before
    assert mine and soon(lambda: not any(map(is_running, mine)))


def _children() -> list[int]:
    """The processes that this one has started."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="utf-8")
    return [int(word) for word in found.split()]


def compares(prediction: Array, label: Array) -> Array:
    """Each row's loss knows the others' predictions."""
    scores = prediction[:, 0]
    return ((scores[:, None] - scores[None, :]) ** 2).mean(axis=1) + softmax_cross_entropy(prediction, label)


def test_a_plan_that_mixes_rows_is_trained_by_one_process_and_the_owner_is_told_why() -> None:
    compiled = compile_plan(experiment(loss=compares))
    shared = DeviceParallel(Parallel(2))
    found = PlanTrainer(parallel=shared).train(work_on(compiled))
    (news,) = shared.news()
    assert (news.state, news.processes) == ("refused", 1)
    assert "takes rows of the batch together" in news.reason
    right = PlanTrainer().train(work_on(compiled))
    assert all(value.tobytes() == right.sections[name].tobytes() for name, value in found.sections.items())


def test_the_choice_is_kept_for_the_plans_that_were_asked_for_last() -> None:
    """A cut takes the memory of a plan's graphs a few times, and a device may be asked for plans without end."""
    work = work_on(compile_plan(experiment(loss=compares)))
    step = PlanTrainer().begin(work).step(next(step_feeds(work)))
    shared = DeviceParallel(Parallel(2))

    def cut(*plans: int) -> list[int]:
        """Those of the plans that were cut anew."""
        found = list[int]()
        for plan in plans:

            def case(plan: int = plan) -> StepCase:
                found.append(plan)
                return step

            shared.choose(str(plan), case, batch=frozenset(("batch/x", "batch/y")), threads=1)
        return found

    kept = range(KEPT_PLANS)
    assert cut(*kept) == [*kept] and cut(*kept, 0) == []
    assert cut(KEPT_PLANS, 0) == [KEPT_PLANS] and cut(1) == [1]


def test_processes_that_do_not_start_leave_the_plan_to_one_and_the_owner_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = compile_plan(experiment())
    monkeypatch.setattr("sys.executable", "/no/such/python")
    shared = DeviceParallel(Parallel(2))
    trainer = PlanTrainer(parallel=shared)
    right = PlanTrainer().train(work_on(compiled))
    for _ in range(2):
        found = trainer.train(work_on(compiled))
        assert all(value.tobytes() == right.sections[name].tobytes() for name, value in found.sections.items())
    (news,) = shared.news()
    assert (news.state, news.processes) == ("refused", 1) and news.reason


@pytest.mark.parametrize("wrong", [2, None, 1.5])
def test_a_number_of_processes_is_said_as_a_text(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a text") as caught:
        DevicePolicy(parallel=wrong)
    assert "data(n)" in str(caught.value.hint)


def test_auto_measures_a_plan_once_and_tells() -> None:
    compiled = compile_plan(experiment())
    shared = DeviceParallel(Parallel(2, measured=True))
    trainer = PlanTrainer(parallel=shared)
    for _ in range(2):
        trainer.train(work_on(compiled))
    (news,) = shared.news()
    assert news.state == "chosen" and news.seconds is not None and news.seconds.keys() == {"1", "2"}
    assert (news.processes == 2) == (news.seconds["2"] < 0.9 * news.seconds["1"])
    shared.close()


@pytest.mark.parametrize("parallel", ["data(2)", "pipeline(2)"])
def test_a_device_trains_with_two_processes_over_http(parallel: str, tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    before = set(_children())

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=0)
        view = await place.submit(experiment("shared", rounds=policy, epochs=2, algorithm=FedProx(0.1)))
        for rounds in (1, 2):  # the second is begun anew from the folder
            wish = DevicePolicy(parallel=parallel)
            agent = await place.agent("shared", policy=wish, on_event=hear(heard))
            summary = await agent.run(rounds=rounds)
            assert (summary.counted, summary.failed) == (rounds, 0)
            await agent.close()
        assert (await place.control.history(view.id)).reason == "completed"

    run(work, tmp_path)
    told = [event for event in heard if event["event"] == "parallel"]
    assert all((event.get("by") == "layers") is (parallel == "pipeline(2)") for event in told)
    assert [(event["state"], event["processes"]) for event in told] == [("chosen", 2)] * 2
    assert soon(lambda: not any(map(is_running, set(_children()) - before)))


def test_the_policy_says_how_many_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('threads = 2\nparallel = "data(3)"\n', encoding="utf-8")
    assert read_policy(file).parallel == "data(3)"
    file.write_text('threads = 2\nparallel = "pipeline(3)"\n', encoding="utf-8")
    assert read_policy(file).parallel == "pipeline(3)"
    file.write_text('threads = 2\nparallel = "layers(3)"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"line 2.*parallel must be the number of processes in quotes"):
        read_policy(file)
    with pytest.raises(ConfigurationError, match=r"parallel='data\(two\)' cannot be used"):
        DevicePolicy(parallel="data(two)")


def test_memory_counts_the_gradients_of_every_process() -> None:
    plan = compile_plan(experiment()).plan
    more = memory_needed(plan, 3) - memory_needed(plan)
    assert more == 4 * 4 * plan.manifest.layout.size
