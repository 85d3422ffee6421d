"""What a device says of itself reaches whoever chooses a model for it."""

import json
from pathlib import Path

import pytest
from sdk_kit import Lab, experiment, run

from coterie.client_sdk.device.membership import capabilities
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.compute.nn import zoo
from coterie.compute.runtime.yardstick import yardstick_us
from coterie.errors import ArgumentValueError, ConfigurationError
from coterie.protocol.device import Capabilities, CheckIn


@pytest.mark.capability("G17")
def test_a_model_is_chosen_by_what_a_device_measured_and_said_when_it_enrolled(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("phones"))
        agent = await place.agent("phones", policy=DevicePolicy(threads=1, memory_bytes=2_000_000))
        await agent.run(rounds=1)
        (view,) = await place.control.devices("phones")
        assert (view.threads, view.memory_bytes) == (1, 2_000_000)
        measured = view.yardstick_us
        assert measured is not None and 0.1 < measured / yardstick_us() < 10  # others use this machine too
        factor = measured / zoo.recorded().yardstick_us
        choice = zoo.select(task="images", latency_ms=10 * factor, device=view)
        # Two megabytes hold no step of the larger networks.
        assert choice.cost.memory_bytes <= 2_000_000 and choice.entry.name in ("logistic_regression", "mlp", "lenet")
        assert choice.cost.latency_us == pytest.approx(
            zoo.recorded().models["images", choice.entry.name][0].latency_us * factor
        )
        with pytest.raises(ArgumentValueError, match="memory_mb"):
            zoo.select(task="text", device=view.model_copy(update={"memory_bytes": 1000}))
        with pytest.raises(ConfigurationError, match="yardstick_us"):
            zoo.select(task="text", device=view.model_copy(update={"yardstick_us": None}))

    run(work, tmp_path)


def test_the_measure_is_said_with_two_digits_and_once_a_process() -> None:
    first, second = (capabilities(DevicePolicy(), external=False).yardstick_us for _ in range(2))
    assert first is not None and first == second
    assert int(float(f"{first:.2g}")) == first


def test_a_device_of_an_earlier_version_says_nothing_of_it() -> None:
    said = json.loads(CheckIn(capabilities=Capabilities()).model_dump_json())
    del said["capabilities"]["yardstick_us"]
    assert CheckIn.model_validate_json(json.dumps(said)).capabilities.yardstick_us is None
