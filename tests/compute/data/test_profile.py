"""The profile names the part that was made slow."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from coterie.compute.data import Column, DataProfile, Dataset, Source
from coterie.compute.data.source import Rows
from coterie.compute.ir import NDArray
from coterie.errors import ArgumentValueError, DataError
from tests.compute.data.pipelines import numbered
from tests.patience import patience

QUICK = 0.0002


@dataclass(frozen=True)
class Sleepy(Source):
    """Rows that take their time to load."""

    seconds: float

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"id": Column("int64")}

    def __len__(self) -> int:
        return 64

    def rows(self, indices: NDArray) -> Rows:
        time.sleep(self.seconds * len(indices))
        return {"id": indices.copy()}


def slow() -> float:
    """Long enough that other work on the machine does not turn the verdict: a stage sleeps for each of 4 rows in 10
    batches, and on a busy machine any sleep lasts longer.
    """
    return patience(0.005)


def measured(load: float, map_: float, train: float, workers: int) -> DataProfile:
    def work(value: Any) -> Any:
        time.sleep(map_)
        return value

    batches = Dataset.of(Sleepy(load)).map(work, "id").batch(4).workers(workers)
    return batches.profile(lambda batch: time.sleep(4 * train), 10)


@pytest.mark.capability("F10")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("slowest", ["loading", "mapping", "training"])
def test_the_slow_part_is_named_with_the_three_rates(slowest: str, workers: int) -> None:
    pauses = {"loading": QUICK, "mapping": QUICK, "training": QUICK}
    load, map_, train = (pauses | {slowest: slow() * (3 if slowest == "training" else 1)}).values()
    found = measured(load, map_, train, workers)
    assert found.bottleneck == slowest and str(found).startswith(f"{slowest.capitalize()} is the bottleneck")
    assert min((found.loading, "loading"), (found.mapping, "mapping"), (found.training, "training"))[1] == slowest
    # A sleep is never shorter than asked for, so no rate is above what the sleeps allow.
    for rate, seconds, crew in (
        (found.loading, load, max(1, workers)), (found.mapping, map_, max(1, workers)), (found.training, train, 1)
    ):  # fmt: skip
        assert 0 < rate <= crew / seconds
    assert found.rows == 40 and found.waits
    assert f"{found.loading:,.0f}" in str(found) and f"{found.mapping:,.0f}" in str(found)


@pytest.mark.capability("F10")
def test_workers_keep_a_device_busy_that_one_would_let_wait() -> None:
    """A step takes half of what one worker takes for its batch. All of it sleeps, so little depends on the machine."""
    alone, four = (measured(QUICK, 2 * slow(), slow(), workers) for workers in (1, 4))
    assert alone.busy < 0.65 and alone.bottleneck == "mapping"
    assert four.busy > alone.busy + 0.15 and four.bottleneck == "training"


def known(**rates: float) -> DataProfile:
    told = {"loading": 1e3, "mapping": 1e3, "training": 700.0, "busy": 0.7} | rates
    return DataProfile(**told, waits=False, rows=1, workers=2)


@pytest.mark.capability("F10")
def test_loading_and_mapping_share_their_workers_so_their_rates_do_not_simply_compare() -> None:
    both = known()
    assert both.pipeline == 500 and both.bottleneck == "mapping"
    assert known(training=499.0).bottleneck == "training"
    assert known(loading=900.0).bottleneck == "loading"


def test_the_verdict_says_what_to_do() -> None:
    assert "more workers up to the number of cores" in known().verdict
    assert "give it workers" in replace(known(), workers=0).verdict
    assert "mostly waits" in replace(known(), waits=True).verdict
    assert "as it should be" in known(training=10.0).verdict
    assert "70% of the time" in replace(known(training=10.0), workers=0).verdict


def test_nothing_to_profile_is_refused() -> None:
    with pytest.raises(DataError, match="No row is left"):
        numbered(3).filter(lambda i: False, "id").batch(2).profile(lambda batch: None)
    with pytest.raises(DataError, match="No row is left"):
        numbered(3).take(0).batch(2).profile(lambda batch: np.zeros(1))
    with pytest.raises(ArgumentValueError):
        numbered(3).batch(2).profile(lambda batch: None, 0)
