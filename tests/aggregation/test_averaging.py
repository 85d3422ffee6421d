"""The mean over versions."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.averaging import average, average_last
from coterie.aggregation.history import History
from coterie.aggregation.record import RoundRecord
from coterie.protocol.tensors import encode_tensors


def version(seed: int) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {"a": random.normal(size=(2, 3)).astype(np.float32), "b": random.normal(size=4).astype(np.float32)}


@settings(max_examples=30)
@given(weights=st.lists(st.floats(0, 100), min_size=1, max_size=5).filter(lambda values: sum(values) > 1e-3))
def test_it_is_the_weighted_mean_of_every_tensor(weights: list[float]) -> None:
    versions = [version(seed) for seed in range(len(weights))]
    mean = average(versions, weights)
    for name, value in mean.items():
        expected = np.average([each[name].astype(np.float64) for each in versions], axis=0, weights=weights)
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
        assert value.dtype == np.float32


def test_one_version_and_equal_versions_stay_as_they_are() -> None:
    for versions in ([version(0)], [version(0)] * 4):
        assert {name: value.tobytes() for name, value in average(versions).items()} == {
            name: value.tobytes() for name, value in version(0).items()
        }


@pytest.mark.parametrize(
    ("count", "weights"), [(0, None), (2, [1.0]), (2, [1.0, -1.0]), (2, [0.0, 0.0]), (1, [np.nan])]
)
def test_nothing_to_average_is_refused(count: int, weights: list[float] | None) -> None:
    with pytest.raises(errors.InputError) as caught:
        average([version(seed) for seed in range(count)], weights)
    assert caught.value.reason == "nothing_to_average"


@pytest.mark.parametrize("count", [0, -1, 1.5, None, "2", np.nan, True])
def test_how_many_of_the_last_is_a_whole_number(count: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="must be a whole number of at least 1") as caught:
        average_last(History((), None, None), tmp_path, count)
    assert caught.value.reason == "nothing_to_average"


def test_versions_of_another_layout_are_refused() -> None:
    with pytest.raises(errors.InputError, match="'b'") as caught:
        average([version(0), {"a": version(1)["a"]}])
    assert caught.value.reason == "layout_mismatch"


def test_the_last_rounds_of_a_simulation(tmp_path: Path) -> None:
    """A round that was abandoned made nothing."""
    for name in "123":
        (tmp_path / f"{name}.safetensors").write_bytes(encode_tensors(version(int(name))))
    made = ("1", "2", None, "3")
    rounds = [
        RoundRecord(round=number, state="committed" if model else "abandoned", model=model)
        for number, model in enumerate(made, 1)
    ]
    history = History(tuple(rounds), "completed", "3")
    expected = average([version(2), version(3)])
    for name, value in average_last(history, tmp_path, 2).items():
        np.testing.assert_array_equal(value, expected[name])
    with pytest.raises(errors.InputError):
        average_last(history, tmp_path, 0)
