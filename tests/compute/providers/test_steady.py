"""A provider that fails in the middle of a training: the CPU goes on from the same state, and somebody is told."""

from collections.abc import Mapping

import numpy as np
import pytest

from coterie.compute.ir import NDArray
from coterie.compute.runtime.devices import Provider, discover
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback, SteadyExecutable, SteadyLoop
from coterie.compute.runtime.step_loop import StepLoop
from coterie.errors import GraphRefused, InternalError, ProviderFailed
from tests.compute.providers.fakes import Change, failing, made
from tests.compute.providers.steps import FED, case, feeds

STEPS = 6


def run(provider: Provider) -> tuple[dict[str, NDArray], list[NDArray], list[Fallback], str]:
    """State and losses after some steps, what was told, and where it ended."""
    told: list[Fallback] = []
    step = case()
    loop = SteadyLoop(
        provider.executable(step.data),
        carry=step.carry,
        constants=step.constants,
        state=step.state,
        in_place=True,
        told=told.append,
    )
    losses: list[NDArray] = []
    for number in range(STEPS):
        loop.step({name: feeds(number)[name] for name in FED})
        losses.append(loop.read(["loss"])["loss"])
    return loop.state(), losses, told, loop.executable.provider


@pytest.mark.parametrize("at", range(STEPS + 1))
def test_whenever_a_provider_fails_the_training_is_the_one_that_the_cpu_makes(at: int) -> None:
    expected, losses, nothing, _ = run(discover()[0])
    state, found, told, where = run(failing("Frail", at))
    assert nothing == [] and np.array_equal(losses, found)
    assert all(np.array_equal(state[name], value) for name, value in expected.items())
    if at == STEPS:
        assert told == [] and where == "Frail"
    else:
        assert [(each.provider, each.steps) for each in told] == [("Frail", at)] and where == CPU
        assert "the device is lost" in told[0].reason


def test_a_plain_loop_names_the_provider_and_keeps_the_state() -> None:
    step = case()
    loop = StepLoop(
        failing("Frail", 1).executable(step.data), carry=step.carry, constants=step.constants, state=step.state
    )
    loop.step(step.feeds)
    before = loop.state()
    with pytest.raises(ProviderFailed, match="Frail failed in a training step: the device is lost") as caught:
        loop.step(step.feeds)
    assert caught.value.details == {"provider": "Frail"}
    assert all(np.array_equal(loop.state()[name], value) for name, value in before.items())


def test_the_cpu_has_nothing_to_fall_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    step, told = case(), list[Fallback]()
    loop = SteadyLoop(
        Executable(step.data), carry=step.carry, constants=step.constants, state=step.state, told=told.append
    )

    def fail(*given: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(loop.executable.session, "run_with_iobinding", fail)
    with pytest.raises(InternalError, match="no memory"):
        loop.step(step.feeds)
    assert told == []


def test_a_run_without_state_is_repeated_on_the_cpu() -> None:
    told: list[Fallback] = []
    given = feeds()
    steady = SteadyExecutable(failing("Frail", 2).executable(case().data), told=told.append)
    expected = Executable(case().data).run(given)
    for _ in range(4):
        found = steady.run(given)
        assert all(np.array_equal(found[name], value) for name, value in expected.items())
    assert told == [Fallback("Frail", 2, told[0].reason)] and steady.executable.provider == CPU


def nothing(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    return {}


def doubled(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    return {name: value.astype(np.float64) for name, value in results.items()}


def flattened(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    return {name: value.reshape(-1) for name, value in results.items()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (nothing, "are missing"),
        (doubled, "is float64"),
        (flattened, r"is float32\[48\]"),
    ],
)
def test_results_that_do_not_fit_are_failures_of_the_provider(change: Change, said: str) -> None:
    step = case()
    broken = made("Broken", change)
    loop = StepLoop(broken.executable(step.data), carry=step.carry, constants=step.constants, state=step.state)
    with pytest.raises(ProviderFailed, match=said):
        loop.step(step.feeds)


def test_a_package_that_cannot_load_a_graph_refuses_it() -> None:
    def load(data: bytes) -> object:
        raise KeyError("kernel")

    with pytest.raises(GraphRefused, match="Closed cannot load the graph: KeyError"):
        Provider("Closed", "1", load).executable(case().data)  # pyright: ignore[reportArgumentType]  it never returns
