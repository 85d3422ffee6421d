"""Providers of a device: tried once and remembered, chosen by the time of a step, left when they fail."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sdk_kit import Lab, experiment, hear, rows, run

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.horizontal import IFCA
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.providers import DeviceProviders, ProviderNews, Seat
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.client_sdk.device.watch import Watch
from coterie.compute import nn
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn.module import ParameterSpec
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import adam
from coterie.compute.runtime import choice
from coterie.compute.runtime.conformance import CaseResult, ConformanceReport
from coterie.compute.runtime.devices import Provider, Runner, discover
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.quarantine import identity_of
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.verdict import Identity, Verdict
from coterie.protocol.rounds import RoundPolicy
from tests.compute.providers.fakes import Recorded, failing, made, off, rounding, stale

TASK = LocalTask(experiment="exp", round=1, seed=7)
PLAN = compile_plan(experiment(epochs=3))
# Before the first step of a training a provider has made these: some that are compared, some timed.
TRIED = choice.COMPARED + choice.STEPS


def counting(tried: list[str], *, wrong: str = "") -> Callable[[Provider], ConformanceReport]:
    def trial(provider: Provider) -> ConformanceReport:
        tried.append(provider.name)
        right = provider.name != wrong
        return ConformanceReport(
            provider, (CaseResult("add", "agrees" if right else "differs", 0.0 if right else 1.0),)
        )

    return trial


def desk(
    *found: Provider,
    wish: str = "auto",
    remembered: Mapping[Identity, Verdict] | None = None,
    trial: Callable[[Provider], ConformanceReport] | None = None,
    watch: Watch | None = None,
) -> DeviceProviders:
    return DeviceProviders(wish, remembered or {}, discovery=lambda: found, trial=trial or counting([]), watch=watch)


def work_on(compiled: CompiledPlan = PLAN) -> LocalWork:
    return LocalWork(plan=compiled.plan, task=TASK, weights=compiled.initial, frozen=compiled.frozen, rows=rows(29))


def train(providers: DeviceProviders | None, compiled: CompiledPlan = PLAN) -> LocalResult:
    return PlanTrainer(providers=providers).train(work_on(compiled))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not the CPU counts as quicker."""

    def other(found: tuple[choice.Timing, ...]) -> choice.Timing:
        return next((each for each in found if each.provider.name != CPU and not each.fault), found[0])

    monkeypatch.setattr("coterie.client_sdk.device.providers.fastest", other)


def told(providers: DeviceProviders) -> list[tuple[str, str]]:
    return [(news.provider, news.state) for news in providers.news()]


def test_a_slow_provider_is_measured_and_left() -> None:
    providers = desk(made("Slow", sleep=0.002))
    found, expected = train(providers), train(None)
    assert np.array_equal(found.sections["delta"], expected.sections["delta"])
    trusted, chosen = providers.news()
    assert (trusted.provider, trusted.state, chosen.provider, chosen.state) == ("Slow", "trusted", CPU, "chosen")
    assert chosen.seconds is not None and chosen.seconds["Slow"] >= 0.002 > chosen.seconds[CPU]


@pytest.mark.capability("E6")
@pytest.mark.usefixtures("quick")
def test_e6_the_quickest_provider_trains_and_evaluates() -> None:
    runs: list[int] = []

    def counted(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        runs.append(1)
        return results

    providers = desk(made("Quick", counted))
    trainer = PlanTrainer(providers=providers)
    found = trainer.train(work_on())
    assert len(runs) == TRIED + found.steps
    assert trainer.evaluate(work_on()).examples == 29
    assert len(runs) == TRIED + found.steps + 4  # four batches
    trainer.train(work_on())
    assert told(providers) == [("Quick", "trusted"), ("Quick", "chosen")]  # measured once


@pytest.mark.capability("E6")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("at", [0, 5, 11])
def test_e6_a_provider_that_fails_in_a_training_costs_no_step(at: int) -> None:
    providers = desk(failing("Frail", TRIED + at))
    found, expected = train(providers), train(None)
    assert found.steps == expected.steps == 12
    for name, section in expected.sections.items():
        assert np.array_equal(found.sections[name], section)
    *_, failed = providers.news()
    assert (failed.provider, failed.state, failed.steps) == ("Frail", "failed", at)
    assert failed.verdict is not None and not failed.verdict.trusted and "device is lost" in failed.reason
    assert providers.chosen(PLAN.plan.id) == Seat()
    train(providers)
    assert told(providers) == []


@pytest.mark.capability("E6")
@pytest.mark.usefixtures("quick")
def test_e6_weights_are_copied_to_a_device_once_a_training() -> None:
    recorded, weights = Recorded("Recorded", "1"), ["shared/0.weight", "shared/2.weight"]
    trainer = PlanTrainer(providers=desk(recorded))
    trainer.train(work_on())
    for turn in (1, 2):
        before = recorded.copies.sent.copy(), recorded.copies.fetched.copy(), recorded.copies.bound
        steps = trainer.train(work_on()).steps
        sent, fetched = recorded.copies.sent - before[0], recorded.copies.fetched - before[1]
        assert steps == 12 and {sent[name] for name in weights} == {fetched[name] for name in weights} == {1}
        assert max(sent.values()) == steps, turn  # the batches
        assert recorded.copies.bound == before[2]


@pytest.mark.capability("E6")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("at", [0, 5, 11])
@pytest.mark.parametrize("forgets", [False, True], ids=["failed", "lost with its memory"])
def test_e6_a_training_ends_on_the_cpu_when_its_device_is_lost(at: int, forgets: bool) -> None:
    providers = desk(Recorded("Recorded", "1", fails_at=TRIED + at, forgets=forgets))
    found, expected = train(providers), train(None)
    assert found.steps == expected.steps == 12
    assert np.array_equal(found.sections["delta"], expected.sections["delta"])
    assert told(providers)[-1] == ("Recorded", "failed") and providers.chosen(PLAN.plan.id) == Seat()


@pytest.mark.usefixtures("quick")
def test_a_provider_that_fails_in_a_pass_over_rows_costs_nothing() -> None:
    probing = compile_plan(experiment(algorithm=IFCA(2)))
    steps = train(None, probing).steps
    frail = desk(failing("Frail", TRIED + steps + 1))
    trainer = PlanTrainer(providers=frail)
    for _ in range(2):  # the first training chooses; the second one's probe fails
        found = trainer.train(work_on(probing))
        assert np.array_equal(found.sections["delta"], train(None, probing).sections["delta"])
    assert told(frail)[-1] == ("Frail", "failed")


@pytest.mark.parametrize("wrong", [made("Wrong", off), stale("Wrong")], ids=["off", "stale"])
def test_a_provider_whose_steps_differ_is_quarantined_whatever_its_recipes_say(wrong: Provider) -> None:
    providers = desk(wrong)
    train(providers)
    states = {news.state: news for news in providers.news()}
    assert list(states) == ["trusted", "failed", "chosen"] and states["chosen"].provider == CPU
    assert "from the CPU's" in states["failed"].reason and states["failed"].verdict is not None


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("seed", range(4))
def test_what_rounding_alone_turns_around_is_no_fault(seed: int) -> None:
    """A bias before a normalisation has no gradient but rounding, which Adam makes a whole step of."""
    compiled = compile_plan(experiment(model=normalised(), optimizer=adam(0.05)))
    providers = desk(rounding("Rounding", seed), made("Wrong", off))
    train(providers, compiled)
    assert [each for each, state in told(providers) if state == "failed"] == ["Wrong"]


def test_verdicts_outlive_the_process_and_spare_the_trial(tmp_path: Path) -> None:
    tried: list[str] = []
    machine = (made("Good"), made("Wrong"))
    for life in range(2):
        store = DeviceStore(tmp_path)
        providers = desk(*machine, remembered=store.verdicts.recall(), trial=counting(tried, wrong="Wrong"))
        train(providers)
        news = providers.news()
        assert [(each.provider, each.state) for each in news][:2] == [("Good", "trusted"), ("Wrong", "quarantined")]
        fresh = [each.verdict for each in news if each.verdict is not None]
        assert len(fresh) == (0 if life else 2) and tried == ["Good", "Wrong"]
        for verdict in fresh:
            store.verdicts.record(verdict)
        store.close()
    store = DeviceStore(tmp_path)
    newer = made("Wrong", driver="2")
    assert identity_of(machine[1]) in store.verdicts.recall() and identity_of(newer) not in store.verdicts.recall()
    train(desk(newer, remembered=store.verdicts.recall(), trial=counting(tried)))
    assert tried == ["Good", "Wrong", "Wrong"]  # another driver: tried again
    store.close()


def test_a_machine_whose_providers_cannot_be_told_apart_trains_on_the_cpu() -> None:
    providers = DeviceProviders(
        "Slow", {}, discovery=lambda: discover([made("Slow"), made("Slow")]), trial=counting([])
    )
    assert np.array_equal(train(providers).sections["delta"], train(None).sections["delta"])
    (absent,) = providers.news()
    assert (absent.provider, absent.state) == ("Slow", "absent") and "two providers called Slow" in absent.reason


def choosy(name: str, most: int) -> Provider:
    """A provider that loads so many graphs, and no more."""
    loads, honest = count(), made(name)

    def load(data: bytes) -> Runner:
        if next(loads) >= most or honest.open is None:
            raise MemoryError("the device is full")
        return honest.open(data)

    return Provider(name, "1.0", load, "1")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("most", [1, 2])
def test_a_graph_that_a_chosen_provider_does_not_load_runs_on_the_cpu(most: int) -> None:
    """Of a plan's graphs it has loaded one to be timed: then it takes none, or that of training alone."""
    full = desk(choosy("Full", most))
    trainer = PlanTrainer(providers=full)
    for _ in range(2):
        found = trainer.train(work_on())
        assert np.array_equal(found.sections["delta"], train(None).sections["delta"])
        assert trainer.evaluate(work_on()).examples == 29
    refused = [news for news in full.news() if news.state == "refused"]
    assert len(refused) == 3 - most and all("the device is full" in news.reason for news in refused)


KILLED = """
import ctypes, sys
import numpy as np
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_providers import TRIED, choice, counting, made, work_on
from coterie.client_sdk.device.providers import DeviceProviders
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.client_sdk.device.watch import Watch

runs = []
def ends(results):
    runs.append(1)
    return ctypes.string_at(0) if len(runs) > TRIED + int(sys.argv[2]) else results

choice.ADVANTAGE = 1e9
store = DeviceStore(Path(sys.argv[1]))
desk = DeviceProviders("Ending", store.verdicts.recall(), discovery=lambda: [made("Ending", ends)], trial=counting([]),
                       watch=Watch(store.folder / "computing.json"))
found = PlanTrainer(providers=desk).train(work_on())
for news in desk.news():
    print(news.provider, news.state, news.reason)
    if news.verdict:
        store.verdicts.record(news.verdict)
desk.rest()
np.save(store.folder / "delta.npy", found.sections["delta"])
store.close()
"""


def test_a_provider_that_ends_the_process_ends_it_twice_and_no_more(tmp_path: Path) -> None:
    """In the middle of a training, whose task would be taken up again for ever."""
    script = tmp_path / "device.py"
    script.write_text(KILLED, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(tmp_path / "store"), "5", str(Path(__file__).parent)]
    lives = [subprocess.run(command, env=environment, capture_output=True, text=True) for _ in range(3)]
    assert [life.returncode for life in lives] == [-signal.SIGSEGV, -signal.SIGSEGV, 0], lives[2].stderr
    reason = "the process ended while it computed, 2 times in a row"
    assert lives[2].stdout.splitlines() == [f"Ending quarantined {reason}"]
    assert np.array_equal(np.load(tmp_path / "store" / "delta.npy"), train(None).sections["delta"])
    store = DeviceStore(tmp_path / "store")
    assert [verdict.reason for verdict in store.verdicts.recall().values()] == [reason]
    assert Watch(store.folder / "computing.json").suspects() == []
    store.close()


@pytest.mark.parametrize("content", [b"", b"{}", b'[{"provider": "X"', b"[[1]]", b'[{"ends": 2}]', b"\xff"])
def test_a_watch_that_cannot_be_read_suspects_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "computing.json").write_bytes(content)
    watch = Watch(tmp_path / "computing.json")
    assert watch.suspects() == []
    watch.computes(identity_of(made("Good")))
    assert Watch(tmp_path / "computing.json").suspects() == []


def test_only_ends_in_a_row_count_and_only_of_whom_they_were(tmp_path: Path) -> None:
    path, (good, bad) = tmp_path / "computing.json", map(identity_of, (made("Good"), made("Bad")))
    first = Watch(path)
    first.computes(good)
    first.computes(good)  # once a process
    second = Watch(path)
    assert second.suspects() == []
    second.computes(good)
    second.rests()
    third = Watch(path)
    third.computes(good)
    third.computes(bad)
    third.rests(but=bad)
    fourth = Watch(path)
    fourth.computes(bad)
    fifth = Watch(path)
    assert [verdict.identity for verdict in fifth.suspects()] == [bad]
    fifth.rests()
    assert Watch(path).suspects() == []


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("Slow", [("Slow", "trusted"), ("Slow", "chosen")]),
        ("NoSuchProvider", [("NoSuchProvider", "absent")]),
        ("openvino", [("OpenVINOExecutionProvider", "trusted"), ("OpenVINOExecutionProvider", "chosen")]),
        ("cpu", []),
    ],
)
def test_a_wish_by_name_is_followed_where_it_can_be(wish: str, expected: list[tuple[str, str]]) -> None:
    providers = desk(made("Slow", sleep=0.0005), made("OpenVINOExecutionProvider"), wish=wish)
    found = train(providers)
    assert np.array_equal(found.sections["delta"], train(None).sections["delta"])
    assert told(providers) == expected


class FrozenFront(nn.Module):
    """A layer that nobody trains, and one that learns."""

    body = mlp((4, 8, 3))

    def specs(self) -> dict[str, ParameterSpec]:
        found = self.body.specs()
        return {name: replace(spec, role="frozen") if name.startswith("0.") else spec for name, spec in found.items()}

    def __call__(self, params: Any, x: Array, mode: nn.Mode = nn.EVAL) -> Any:
        return self.body(params, x, mode)


def constant_weights_only(name: str, runs: list[str]) -> Provider:
    """A provider like an NPU: it takes products with constants, and no others."""

    def load(data: bytes) -> Runner:
        graph = onnx.load_from_string(data).graph
        held = {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type in ("Gemm", "MatMul") and held.isdisjoint(node.input):
                raise ValueError(f"{node.op_type} of two inputs")
        run = Executable(data).run

        def counted(feeds: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
            runs.append(name)
            return run(feeds)

        return counted

    return Provider(name, "1.0", load, "1")


def test_an_npu_that_takes_constant_weights_alone_runs_the_frozen_front_of_a_plan() -> None:
    frozen, plain = compile_plan(experiment(model=FrozenFront())), PLAN
    expected, runs = train(None, frozen), list[str]()
    providers = desk(constant_weights_only("Npu", runs), wish="Npu")
    found = train(providers, frozen)
    assert np.array_equal(found.sections["delta"], expected.sections["delta"])
    chosen = providers.news()[-1]
    assert (chosen.provider, chosen.state) == ("Npu (frozen front)", "chosen")
    assert list(chosen.seconds or {}) == [CPU, "Npu (frozen front)"]
    assert providers.chosen(frozen.plan.id).trunk and len(runs) == TRIED + found.steps
    assert providers.chosen(plain.plan.id) == Seat()
    train(providers, plain)  # nothing frozen: it cannot take part, and is not distrusted for that
    assert told(providers) == [(CPU, "chosen")] and providers.chosen(plain.plan.id).provider.name == CPU


def test_news_are_handed_over_once() -> None:
    providers = desk(made("Good"))
    train(providers)
    assert all(isinstance(news, ProviderNews) for news in providers.news()) and providers.news() == []


@pytest.mark.usefixtures("quick")
def test_an_agent_goes_on_on_the_cpu_says_so_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real round over HTTP: the provider fails in the middle of the first training."""
    frail = failing("Frail", TRIED + 5)

    def discovered(plugins: object) -> list[Provider]:
        return [frail]

    monkeypatch.setattr("coterie.client_sdk.device.providers.discover", discovered)
    monkeypatch.setattr("coterie.client_sdk.device.providers.tried", counting([]))
    heard: list[dict[str, Any]] = []

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=0)
        view = await place.submit(experiment("frail", rounds=policy, epochs=4))
        for rounds in (1, 2):
            wish = DevicePolicy(provider="auto")
            agent = await place.agent("frail", policy=wish, on_event=hear(heard))
            summary = await agent.run(rounds=rounds)
            assert (summary.counted, summary.failed) == (rounds, 0)
            await agent.close()
        assert (await place.control.history(view.id)).reason == "completed"

    run(work, tmp_path)
    news = [event for event in heard if event["event"] == "provider"]
    assert [event["state"] for event in news] == ["trusted", "chosen", "failed", "quarantined"]
    assert news[1]["seconds"].keys() == {CPU, "Frail"}
    assert news[2]["steps"] == 5 and "the device is lost" in news[2]["reason"] == news[3]["reason"]
