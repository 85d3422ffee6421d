"""Every execution provider of the table, on machines that have it: a step computes and trains as on the CPU."""

import numpy as np
import pytest

from coterie.compute.ir import NDArray
from coterie.compute.onnx.providers import PROVIDERS
from coterie.compute.runtime.conformance import conformance
from coterie.compute.runtime.devices import discover, provider_named
from coterie.compute.runtime.reference import distance
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.step_recipes import STEPS
from tests.compute.providers.steps import FED, case, feeds

RUNTIMES = sorted({row.runtime for row in PROVIDERS.values()})


def trained(provider: str) -> dict[str, NDArray]:
    """The state after five steps of momentum."""
    step = case()
    executable = provider_named(provider).executable(step.data)
    loop = StepLoop(executable, carry=step.carry, constants=step.constants, state=step.state)
    for number in range(5):
        loop.step({name: feeds(number)[name] for name in FED})
    return loop.state()


@pytest.mark.capability("G15")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_g15_a_step_trains_on_every_provider_of_this_machine(runtime: str) -> None:
    if runtime not in [provider.name for provider in discover()]:
        pytest.skip(f"{runtime} is not on this machine; make test-providers tries those that it can have")
    expected, found = trained(CPU), trained(runtime)
    assert max(distance(found[name], value) for name, value in expected.items()) < 1e-4
    assert any(not np.array_equal(value, case().state[name]) for name, value in found.items())


@pytest.mark.capability("G15")
def test_g15_whole_steps_are_part_of_every_trial() -> None:
    report = conformance(CPU, recipes=STEPS)
    assert report.passed and {result.outcome for result in report.cases} == {"agrees"}
