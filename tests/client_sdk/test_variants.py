"""A device takes a plan's variant for the class of its provider, once it is proved, and else the plan's own file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from sdk_kit import Lab, experiment, hear, run

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.stage import StageVariant
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.providers import DeviceProviders
from coterie.client_sdk.device.seats import CpuSeats, Seat, Seats
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork, Stopped, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.ir import NDArray
from coterie.compute.nn.zoo import gru
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.runtime import choice
from coterie.compute.runtime.conformance import CaseResult, ConformanceReport
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.session import CPU
from coterie.errors import CoterieError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate
from tests.compute.providers.fakes import failing, made, off

LENGTH, WORDS = 6, 8
KINDS: tuple[ProviderClass, ...] = get_args(ProviderClass)
SCHEMA = DataSchema(
    (Feature(name="x", dtype="int32", shape=(LENGTH,), low=0, high=WORDS - 1),),
    Label(name="y", shape=(LENGTH,), low=0, high=WORDS - 1),
)
TASK = LocalTask(experiment="exp", round=1, seed=7)
# Before the first step of a training, a provider has made these with each file that it is tried with.
TRIED = choice.COMPARED + choice.STEPS


def tokens(count: int = 29) -> dict[str, NDArray]:
    """Each token is followed by the next one."""
    x = np.random.default_rng(0).integers(0, WORDS, (count, LENGTH)).astype(np.int32)
    return {"x": x, "y": ((x + 1) % WORDS).astype(np.int32)}


def looped(name: str = "looped", **changes: Any) -> Experiment:
    """A recurrent model whose steps are a loop, so that some classes have another file."""
    wanted = experiment(name, model=gru(WORDS, 4, unroll=False), schema=SCHEMA, metrics={}, variants=KINDS, epochs=2)
    return replace(wanted, **changes)


@pytest.fixture(scope="module")
def compiled() -> CompiledPlan:
    return compile_plan(looped())


@pytest.fixture(scope="module")
def portable(compiled: CompiledPlan) -> LocalResult:
    return train(None, compiled)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variants count as quicker than everything else, and other providers than the CPU."""

    def order(timing: choice.Timing) -> tuple[bool, bool, bool]:
        return bool(timing.fault), timing.variant is None, timing.provider.name == CPU

    def first(found: Sequence[choice.Timing]) -> choice.Timing:
        return min(found, key=order)

    for name in ("providers.fastest", "providers.quickest", "seats.fastest"):
        monkeypatch.setattr(f"coterie.client_sdk.device.{name}", first)


def trusting(provider: Provider) -> ConformanceReport:
    return ConformanceReport(provider, (CaseResult("add", "agrees", 0.0),))


def desk(*found: Provider, wish: str = "auto") -> DeviceProviders:
    return DeviceProviders(wish, {}, discovery=lambda: found, trial=trusting)


def work_on(compiled: CompiledPlan, **options: Any) -> LocalWork:
    return LocalWork(
        plan=compiled.plan,
        task=TASK,
        weights=compiled.initial,
        frozen=compiled.frozen,
        rows=tokens(),
        options=TrainOptions(**options),
    )


def train(seats: Seats | None, compiled: CompiledPlan) -> LocalResult:
    return PlanTrainer(providers=seats).train(work_on(compiled))


def with_graph(compiled: CompiledPlan, name: str, data: bytes | None) -> CompiledPlan:
    """The plan as it is on a device that has other bytes there, or none."""
    graphs = {key: value for key, value in compiled.plan.graphs.items() if key != name}
    return replace(compiled, plan=replace(compiled.plan, graphs=graphs if data is None else {**graphs, name: data}))


def halved(data: bytes) -> bytes:
    """The same interface, other steps."""
    model = onnx.load_from_string(data)
    numbers = (t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    tensor = next(t for t in numbers if np.abs(numpy_helper.to_array(t)).max() > 0)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(0.5), tensor.name))
    return model.SerializeToString()


def assert_same_update(found: LocalResult, expected: LocalResult) -> None:
    assert (found.steps, found.weight) == (expected.steps, expected.weight)
    for name, section in expected.sections.items():
        assert np.allclose(found.sections[name], section, rtol=1e-4, atol=1e-5), name


@pytest.mark.capability("E10")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", KINDS)
def test_e10_each_variant_gives_the_update_of_the_portable_file(
    kind: ProviderClass, compiled: CompiledPlan, portable: LocalResult
) -> None:
    loads: list[bytes] = []
    providers = desk(made("Chip", kind=kind, loaded=loads.append))
    # The CPU's own variant would be as good.
    plan = compiled if kind == "cpu" else with_graph(compiled, "train.cpu", None)
    found = train(providers, plan)
    assert_same_update(found, portable)
    seat = providers.chosen(compiled.plan.id)
    assert seat.variant == kind
    graphs = compiled.plan.graphs
    assert set(loads) == {graphs["train"], graphs[f"train.{kind}"]}
    trusted, chosen = providers.news()
    assert (trusted.state, chosen.state) == ("trusted", "chosen")
    assert f"Chip ({kind} variant)" in (chosen.seconds or {}) and "Chip" in (chosen.seconds or {})


@pytest.mark.usefixtures("quick")
def test_a_variant_of_other_numbers_is_refused_by_name_and_the_provider_stays(
    compiled: CompiledPlan, portable: LocalResult
) -> None:
    wrong = with_graph(with_graph(compiled, "train.cpu", None), "train.gpu", halved(compiled.plan.graphs["train.gpu"]))
    providers = desk(made("Chip", kind="gpu"))
    assert_same_update(train(providers, wrong), portable)
    trusted, refused, chosen = providers.news()
    assert (trusted.state, refused.state, chosen.state) == ("trusted", "refused", "chosen")
    assert refused.provider == "Chip" and refused.verdict is None
    assert refused.reason.startswith("the gpu variant: its steps are ") and "from the CPU's" in refused.reason
    assert (
        providers.chosen(compiled.plan.id) == Seat(chosen_provider(providers, compiled)) and chosen.provider == "Chip"
    )


def chosen_provider(providers: DeviceProviders, compiled: CompiledPlan) -> Provider:
    found = providers.chosen(compiled.plan.id).provider
    assert found.name == "Chip"
    return found


@pytest.mark.usefixtures("quick")
def test_a_provider_that_takes_its_variant_alone_trains(compiled: CompiledPlan, portable: LocalResult) -> None:
    def loops_only(data: bytes) -> None:
        if all(node.op_type != "Scan" for node in onnx.load_from_string(data).graph.node):
            raise ValueError("too many nodes")

    providers = desk(made("Chip", kind="gpu", loaded=loops_only), wish="Chip")
    assert_same_update(train(providers, compiled), portable)
    assert providers.chosen(compiled.plan.id).variant == "gpu"
    assert [news.state for news in providers.news()] == ["trusted", "chosen"]


@pytest.mark.usefixtures("quick")
def test_a_provider_that_is_wrong_about_the_plans_own_file_is_quarantined_with_its_variant(
    compiled: CompiledPlan, portable: LocalResult
) -> None:
    providers = desk(made("Chip", off, kind="gpu"))
    found = train(providers, with_graph(compiled, "train.cpu", None))
    assert np.array_equal(found.sections["delta"], portable.sections["delta"])
    assert [news.state for news in providers.news()] == ["trusted", "failed", "chosen"]
    seat = providers.chosen(compiled.plan.id)
    assert (seat.provider.name, seat.variant) == (CPU, None)


@pytest.mark.usefixtures("quick")
def test_a_provider_that_fails_with_its_variant_costs_no_step(compiled: CompiledPlan, portable: LocalResult) -> None:
    frail = replace(failing("Chip", 2 * TRIED + 3), kind="gpu")
    providers = desk(frail)
    assert_same_update(train(providers, with_graph(compiled, "train.cpu", None)), portable)
    *_, failed = providers.news()
    assert (failed.state, failed.steps) == ("failed", 3) and providers.chosen(compiled.plan.id) == Seat()


def test_the_plans_own_file_runs_where_the_variant_is_no_quicker(
    compiled: CompiledPlan, portable: LocalResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "ADVANTAGE", 0.0)
    for seats in (CpuSeats(), desk()):
        found = train(seats, compiled)
        assert np.array_equal(found.sections["delta"], portable.sections["delta"])
        (chosen,) = seats.news()
        assert chosen.provider == CPU and (chosen.seconds or {}).keys() == {CPU, f"{CPU} (cpu variant)"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seats", [CpuSeats, desk])
def test_the_cpu_takes_its_variant_where_that_is_quicker(
    seats: Callable[[], Seats], compiled: CompiledPlan, portable: LocalResult
) -> None:
    chooser = seats()
    trainer = PlanTrainer(providers=chooser)
    for _ in range(2):
        assert_same_update(trainer.train(work_on(compiled)), portable)
    assert chooser.chosen(compiled.plan.id).variant == "cpu"
    assert [(news.provider, news.state) for news in chooser.news()] == [(f"{CPU} (cpu variant)", "chosen")]
    # Evaluation and what runs once have no variant.
    assert trainer.evaluate(work_on(compiled)).examples == 29


@pytest.mark.usefixtures("quick")
def test_a_wrong_variant_for_the_cpu_is_refused_by_name(compiled: CompiledPlan, portable: LocalResult) -> None:
    seats, wrong = CpuSeats(), with_graph(compiled, "train.cpu", halved(compiled.plan.graphs["train.cpu"]))
    found = train(seats, wrong)
    assert np.array_equal(found.sections["delta"], portable.sections["delta"])
    assert [(news.state, news.reason[:15]) for news in seats.news()] == [("refused", "the cpu variant"), ("chosen", "")]


def test_a_plan_without_variants_is_not_measured_on_the_cpu_alone() -> None:
    seats, plain = CpuSeats(), compile_plan(experiment())
    work = replace(work_on(plain), rows={"x": np.zeros((4, 4), np.float32), "y": np.zeros(4, np.int32)})
    assert PlanTrainer(providers=seats).train(work).steps == 1 and seats.news() == []


def test_which_variants_may_be_of_use_follows_the_wish() -> None:
    gpu, unknown = made("Chip", kind="gpu"), made("Other")
    assert CpuSeats().kinds() == desk(wish="cpu").kinds() == {"cpu"}
    assert desk(gpu, unknown).kinds() == {"cpu", "gpu"} and desk(unknown).kinds() == {"cpu"}
    assert desk(gpu, unknown, wish="Chip").kinds() == {"gpu"} and desk(gpu, wish="Other").kinds() == frozenset()
    assert desk(made("CUDAExecutionProvider")).kinds() == {"cpu", "gpu"}


@pytest.mark.parametrize("engine", ["threads", "processes", "batched"])
def test_a_simulation_takes_the_portable_files(engine: str, compiled: CompiledPlan) -> None:
    def told(variants: tuple[ProviderClass, ...]) -> dict[str, float]:
        history = simulate(looped(variants=variants), [tokens()], engine=engine)
        return dict(history.rounds[-1].training)

    assert told(KINDS) == told(())


# Over HTTP.


def cached(place: Lab, name: str = "device") -> set[str]:
    return {path.name for path in (place.folder / name / "cache").iterdir()}


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """A machine with a provider of the class gpu. What is put into the list is called at each of its runs."""
    at_runs: list[Callable[[], None]] = []

    def ran(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        for call in at_runs:
            call()
        return results

    def discovered(plugins: object) -> list[Provider]:
        return [made("Chip", ran, kind="gpu")]

    monkeypatch.setattr("coterie.client_sdk.device.providers.discover", discovered)
    monkeypatch.setattr("coterie.client_sdk.device.providers.tried", trusting)
    return at_runs


@pytest.mark.usefixtures("quick")
def test_a_device_fetches_the_variant_of_its_class_alone_and_goes_on_after_a_stop(
    tmp_path: Path, chip: list[Callable[[], None]], compiled: CompiledPlan, portable: LocalResult
) -> None:
    heard: list[dict[str, Any]] = []
    runs: list[int] = []

    async def work(place: Lab) -> None:
        wanted = looped(rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0), holdout=0.0)
        view = await place.submit(wanted)
        stage = compile_plan(wanted).plan.manifest.stage("train")
        digests = {variant.kind: variant.sha256 for variant in stage.variants}
        policy = DevicePolicy(provider="Chip")
        first = await place.agent("looped", data=tokens(), policy=policy, on_event=hear(heard))

        def stops() -> None:
            runs.append(1)
            if len(runs) == 2 * TRIED + 5:
                first.stop_training()

        chip.append(stops)
        assert (await first.run(rounds=1)).counted == 0
        await first.close()
        assert len(runs) >= 2 * TRIED + 5
        assert stage.sha256 in cached(place) and digests["gpu"] in cached(place)
        assert not {digests["web"], digests["npu"]} & cached(place)
        second = await place.agent("looped", data=tokens(), policy=policy, on_event=hear(heard))
        assert (await second.run(rounds=1)).counted == 1
        assert (await place.control.history(view.id)).reason == "completed"

    run(work, tmp_path)
    chosen = [event for event in heard if event["event"] == "provider" and event["state"] == "chosen"]
    assert [event["provider"] for event in chosen] == ["Chip (gpu variant)"] * 2
    (trained,) = [event for event in heard if event["event"] == "trained"]
    assert trained["steps"] == portable.steps


def test_a_device_of_the_cpu_fetches_that_variant_and_no_other(tmp_path: Path, quick: None) -> None:
    heard: list[dict[str, Any]] = []

    async def work(place: Lab) -> None:
        wanted = looped(rounds=RoundPolicy(rounds=2, cohort=1, evaluate_every=1))
        await place.submit(wanted)
        variants = compile_plan(wanted).plan.manifest.stage("train").variants
        agent = await place.agent("looped", data=tokens(), on_event=hear(heard))
        assert (await agent.run(rounds=2)).failed == 0
        digests = {variant.sha256: variant.kind for variant in variants}
        # The files for cpu and gpu are the same here, and so is their digest.
        assert {digests[name] for name in cached(place) if name in digests} == {digests[variants[0].sha256]}

    run(work, tmp_path)
    told = [(event["provider"], event["state"]) for event in heard if event["event"] == "provider"]
    assert told == [(f"{CPU} (cpu variant)", "chosen")]


def spoilt(compiled: CompiledPlan, data: bytes, *, size: int | None = None) -> CompiledPlan:
    """A plan whose variant for GPUs is other bytes, as a researcher with bad intentions would sign it."""
    bad = StageVariant(kind="gpu", sha256=sha256_hex(data), size=len(data) if size is None else size)
    stages = tuple(replace(s, variants=(bad,)) if s.name == "train" else s for s in compiled.plan.manifest.stages)
    graphs = {name: held for name, held in compiled.plan.graphs.items() if "." not in name}
    return replace(compiled, plan=Plan(replace(compiled.plan.manifest, stages=stages), {**graphs, "train.gpu": data}))


@pytest.mark.parametrize(
    ("case", "code"),
    [("interface", "plan_interface"), ("size", "plan_digest"), ("absent", "blob_missing"), ("graph", "plan_graph")],
)
def test_the_coordinator_refuses_a_plan_with_a_bad_variant(
    tmp_path: Path, case: str, code: str, compiled: CompiledPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = compiled.plan.graphs
    bad = {
        "interface": lambda: spoilt(compiled, graphs["eval"]),
        "size": lambda: spoilt(compiled, graphs["train.gpu"], size=7),
        "absent": lambda: with_graph(spoilt(compiled, graphs["train.gpu"]), "train.gpu", None),
        "graph": lambda: spoilt(compiled, graphs["train.gpu"].replace(b"Tanh", b"Tank")),
    }[case]()

    def compile_bad(wanted: Experiment) -> CompiledPlan:
        return bad

    monkeypatch.setattr("coterie.client_sdk.control.submission.compile_plan", compile_bad)

    async def work(place: Lab) -> None:
        with pytest.raises(CoterieError) as caught:
            await place.submit(looped())
        assert caught.value.reason == code, caught.value.message

    run(work, tmp_path)


def test_a_training_that_is_stopped_with_a_variant_gives_its_loop_back(compiled: CompiledPlan, quick: None) -> None:
    trainer = PlanTrainer(providers=CpuSeats())

    def stop(steps: int) -> None:
        if steps == 2:
            raise Stopped

    with pytest.raises(Stopped):
        trainer.train(work_on(compiled, on_step=stop))
    assert trainer.train(work_on(compiled)).steps == 8
