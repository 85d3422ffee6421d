"""State stays on the device that makes the steps: each copy between it and the host is counted."""

from collections import Counter

import numpy as np
import pytest

from coterie.compute.runtime.devices import provider_named
from coterie.compute.runtime.session import CPU, DTYPES, MEMORIES, available_providers
from coterie.compute.runtime.slots import DeviceSlot, HostSlot, memory_of
from coterie.compute.runtime.steady import Fallback, SteadyLoop
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import ProviderFailed
from tests.compute.providers.fakes import Copies, Recorded
from tests.compute.providers.steps import CARRY, FED, case, feeds

STEPS = 5


def _loop(provider: Recorded) -> StepLoop:
    step = case()
    executable = provider.executable(step.data)
    return StepLoop(executable, carry=step.carry, constants=step.constants, state=step.state)


def _stepped(loop: StepLoop | SteadyLoop) -> None:
    for number in range(STEPS):
        given = feeds(number)
        loop.step({name: given[name] for name in FED})


def test_a_step_copies_its_feeds_to_the_device_and_nothing_back() -> None:
    provider = Recorded("Recorded", "1")
    loop = _loop(provider)
    begun = Copies(Counter(provider.copies.sent), bound=provider.copies.bound)
    _stepped(loop)
    assert provider.copies.sent - begun.sent == Counter(dict.fromkeys(FED, STEPS))
    assert not provider.copies.fetched and provider.copies.bound == begun.bound


def test_the_first_state_and_the_constants_are_copied_once() -> None:
    provider = Recorded("Recorded", "1")
    _stepped(_loop(provider))
    assert {provider.copies.sent[name] for name in (*CARRY.values(), "frozen/kernel")} == {1}


def test_what_is_read_is_copied_once_each() -> None:
    provider = Recorded("Recorded", "1")
    loop = _loop(provider)
    _stepped(loop)
    loop.read(["loss"])
    loop.state()
    assert provider.copies.fetched == Counter({"loss": 1, **dict.fromkeys(CARRY.values(), 1)})


def test_memory_of_a_device_gives_the_bits_of_the_hosts() -> None:
    step = case()
    host = StepLoop(
        provider_named(CPU).executable(step.data), carry=step.carry, constants=step.constants, state=step.state
    )
    device = _loop(Recorded("Recorded", "1"))
    _stepped(host)
    _stepped(device)
    assert all(np.array_equal(device.state()[name], value) for name, value in host.state().items())


@pytest.mark.parametrize("at", range(STEPS))
def test_the_cpu_goes_on_from_the_state_of_a_device_that_failed(at: int) -> None:
    step, told = case(), list[Fallback]()
    expected = _loop(Recorded("Recorded", "1"))
    _stepped(expected)
    failing = Recorded("Recorded", "1", fails_at=at)
    loop = SteadyLoop(
        failing.executable(step.data), carry=step.carry, constants=step.constants, state=step.state, told=told.append
    )
    _stepped(loop)
    assert [each.steps for each in told] == [at] and loop.executable.provider == CPU
    assert all(np.array_equal(loop.state()[name], value) for name, value in expected.state().items())


def test_state_that_a_device_lost_is_a_failure_of_the_provider() -> None:
    step = case()
    executable = Recorded("Recorded", "1", fails_at=2, forgets=True).executable(step.data)
    loop = SteadyLoop(executable, carry=step.carry, constants=step.constants, state=step.state)
    with pytest.raises(ProviderFailed, match="Recorded failed in copying its results: its memory is lost"):
        _stepped(loop)


@pytest.mark.parametrize("dtype", sorted(set(DTYPES.values())))
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_a_slot_of_a_device_gives_back_what_was_written(dtype: str, shape: tuple[int, ...]) -> None:
    info = TensorInfo("t", dtype, shape)
    # The host's own memory, reached as a device's is: by copies alone.
    slot = DeviceSlot.make(info, "cpu")
    assert np.array_equal(slot.read(), info.zeros())
    value = np.arange(info.nbytes // info.numpy_dtype.itemsize).reshape(shape).astype(dtype)
    slot.write(value)
    found = slot.read()
    assert np.array_equal(found, value) and found.dtype == value.dtype
    slot.write(np.zeros_like(value))
    assert np.array_equal(found, value)


def test_the_hosts_memory_serves_providers_without_their_own_here() -> None:
    absent = set(MEMORIES) - set(available_providers())
    for provider in (CPU, "NoSuchProvider", *absent):
        assert isinstance(memory_of(provider)(TensorInfo("t", "float32", (2,))), HostSlot)
