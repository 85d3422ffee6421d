"""Which device a text means."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from coterie.cli.devices import MOST_SHOWN, find_device
from coterie.errors import Conflict, NotFound
from coterie.protocol.control import DeviceView


class Known:
    """A coordinator with these devices, by id and name."""

    def __init__(self, *devices: tuple[str, str]) -> None:
        self._devices = [
            DeviceView(
                id=id,
                name=name,
                population="wards",
                public_key="0" * 64,
                kind="edge",
                enrolled_at=datetime(2026, 1, 1, tzinfo=UTC),
            )
            for id, name in devices
        ]

    def devices(self) -> list[DeviceView]:
        """All of them."""
        return self._devices


def means(text: str, *devices: tuple[str, str]) -> DeviceView:
    return find_device(cast(Any, Known(*devices)), text)


def number(value: int) -> str:
    return f"dev_{value:032x}"


def test_an_id_the_start_of_one_and_a_name_mean_a_device() -> None:
    two = ((number(1), "ward 1"), (f"dev_{'f' * 32}", "ward 2"))
    assert means(number(1), *two).name == means("ward 1", *two).name == means("dev_000", *two).name == "ward 1"


def test_a_name_of_two_devices_is_refused_with_their_ids() -> None:
    with pytest.raises(Conflict) as refused:
        means("ward", (number(1), "ward"), (number(2), "ward"), (number(3), "another"))
    assert refused.value.reason == "device_ambiguous"
    assert number(1) in refused.value.message and number(2) in refused.value.message
    assert number(3) not in refused.value.message


def test_of_very_many_devices_of_one_name_a_few_ids_are_told() -> None:
    with pytest.raises(Conflict, match="and 90 more") as refused:
        means("ward", *((number(each), "ward") for each in range(MOST_SHOWN + 90)))
    assert refused.value.message.count("dev_") == MOST_SHOWN


def test_a_name_of_none_is_unknown() -> None:
    with pytest.raises(NotFound) as refused:
        means("ward", (number(1), "clinic"))
    assert refused.value.reason == "device_unknown"
