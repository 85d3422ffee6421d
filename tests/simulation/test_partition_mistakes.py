"""What goes wrong with partitions in use: other people's files, arrays that are none, changes that cannot be made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import ConfigurationError
from coterie.simulation.partition import LabelNoise, Noise, Partition, iid, natural, shards, split

PARTS = iid(12, 3, seed=1)
NOISE = Noise(feature="x", variance=0.5, seed=1)


def told(folder: Path, **changes: Any) -> ConfigurationError:
    """What reading a manifest with these values is refused with."""
    PARTS.then(NOISE).write(folder)
    file = folder / "partition.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changes}))
    with pytest.raises(ConfigurationError) as caught:
        Partition.read(folder)
    return caught.value


def test_a_manifest_of_another_form_is_not_read_as_this_one(tmp_path: Path) -> None:
    newer = told(tmp_path, format="coterie-partition-2")
    assert newer.reason == "partition_invalid" and "'coterie-partition-2'" in newer.message
    assert "Update coterie" in str(newer.hint)


@pytest.mark.parametrize(
    "changes",
    [
        {"changes": None},
        {"changes": [5]},
        {"changes": {"a": 1}},
        {"names": ["only one"]},
        {"parameters": None},
        {"rows": "12"},
        {"rows": 5},
    ],
    ids=str,
)
def test_a_manifest_with_values_of_the_wrong_kind_is_damaged(changes: dict[str, Any], tmp_path: Path) -> None:
    damaged = told(tmp_path, **changes)
    assert damaged.reason == "partition_damaged" and ".." not in damaged.message.replace("0..", "")


def test_a_manifest_of_brackets_without_end_is_damaged(tmp_path: Path) -> None:
    PARTS.write(tmp_path)
    (tmp_path / "partition.json").write_text("[" * 100_000)
    with pytest.raises(ConfigurationError) as caught:
        Partition.read(tmp_path)
    assert caught.value.reason == "partition_damaged"


@pytest.mark.parametrize("seed", [None, 1.0, "a", True, [1]], ids=str)
def test_changes_need_a_seed_that_is_one(seed: Any) -> None:
    """Text of 1 and 1.0 differs, and so would the noise of what is the same seed to whoever wrote it."""
    for make in (
        lambda: Noise(feature="x", variance=0.1, seed=seed),
        lambda: LabelNoise(label="y", classes=2, high=0.5, seed=seed),
    ):
        with pytest.raises(ConfigurationError, match="seed of .*noise must be a whole number") as caught:
            make()
        assert caught.value.reason == "partition_invalid"


@pytest.mark.parametrize("dtype", [np.bool_, np.str_, np.object_, np.complex64], ids=lambda dtype: dtype.__name__)
def test_noise_goes_on_real_numbers_only(dtype: Any) -> None:
    with pytest.raises(ConfigurationError, match="must hold real numbers to be noised") as caught:
        split({"x": np.ones(12).astype(dtype)}, PARTS.then(NOISE))
    assert caught.value.reason == "partition_invalid"


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        (None, "must be arrays by name, not a NoneType"),
        (np.zeros(12), "must be arrays by name, not a ndarray"),
        ({"x": 5}, "'x' is a single value"),
        ({"x": (row for row in range(12))}, "'x' is a single value"),
        ({"x": "a" * 12}, "'x' is a single value"),
        ({"x": np.zeros(11)}, "has 11 rows; the partition is one of 12"),
    ],
)
def test_what_is_divided_is_arrays_by_name(arrays: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        split(arrays, PARTS)
    assert caught.value.reason == "partition_invalid"


@pytest.mark.parametrize("parts", [[[0, 1], [12]], [[0], [0.5]]], ids=str)
def test_rows_that_there_are_not_are_refused_with_the_clients_number(parts: Any) -> None:
    with pytest.raises(ConfigurationError, match="rows of client 1 cannot be taken out") as caught:
        split({"x": np.zeros(12)}, parts)
    assert caught.value.reason == "partition_invalid"


def test_names_that_the_data_has_survive_a_folder(tmp_path: Path) -> None:
    owners = np.array(["é", "日本", '<&>"', "é"])
    natural(owners).write(tmp_path)
    assert Partition.read(tmp_path).names == ('<&>"', "é", "日本")


def test_long_names_of_classes_stay_apart_in_the_legend(tmp_path: Path) -> None:
    labels = np.array([f"handwritten digit {number}" for number in range(6)] * 4)
    drawn = shards(labels, 3, seed=1).draw(tmp_path / "split.svg").read_text("utf-8")
    assert all(drawn.count(f">handwr…digit {number}</text>") == 1 for number in range(6))
