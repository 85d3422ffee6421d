"""Work that threads share: every place is done once, and it does not matter how many threads there are."""

from threading import Event, Lock, current_thread

import numpy as np
import pytest

from coterie.aggregation.fold.fold import RangeWork
from coterie.aggregation.fold.part import CountedUpdate
from coterie.aggregation.fold.sums import sums_fold
from coterie.aggregation.plan.manifest import METRIC_RANGE, Manifest, NamedRule, Training
from coterie.aggregation.reducers import reducer
from coterie.protocol.layout import Layout
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from coterie.simulation import shares
from coterie.simulation.shares import WorkShares


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares.os, "cpu_count", lambda: 8)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("places", [range(0), range(1), range(5, 90, 7), range(8)])
def test_every_place_is_in_one_share_and_shares_lie_together(threads: int, most: int, places: range) -> None:
    shared, lock, taken = WorkShares(threads), Lock(), list[range]()

    def work(share: range) -> None:
        with lock:
            taken.append(share)

    shared.begin(work, places, most).wait()
    shared.close()
    assert [place for share in sorted(taken, key=lambda share: share.start) for place in share] == list(places)
    assert len(taken) == max(1, min(threads, most, len(places)))


@pytest.mark.parametrize("failing", [0, 3])
def test_what_a_share_raises_is_raised_when_all_have_ended(failing: int) -> None:
    shared, done = WorkShares(4), list[int]()

    def work(share: range) -> None:
        done.extend(share)
        if failing in share:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError):
        shared.begin(work, range(4), 4).wait()
    shared.close()
    assert sorted(done) == [0, 1, 2, 3]


def test_who_asks_goes_on_while_a_thread_is_at_the_work_and_no_thread_is_beside_those_asked_for() -> None:
    shared, going_on, names = WorkShares(2), Event(), set[str]()

    def work(share: range) -> None:
        assert going_on.wait(10)
        names.add(current_thread().name)

    begun = [shared.begin(work, range(2), 2) for _ in range(3)]
    going_on.set()
    for one in begun:
        one.wait()
    shared.close()
    assert 1 <= len(names) <= 2 and current_thread().name not in names


def manifest() -> Manifest:
    layout = Layout.of({"w": (100_003,)})
    return Manifest(
        name="m",
        shape="external",
        schema=DataSchema((Feature(name="x"),), Label(name="y")),
        layout=layout,
        sections=(SectionSpec.over("delta", layout), SectionSpec.extra("metrics", 2, value_range=METRIC_RANGE)),
        hyper={},
        training=Training(batch_size=1),
        algorithm=NamedRule("fedavg", {}),
        optimizer=NamedRule("external", {}),
        stages=(),
    )


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_fold_is_the_weighted_mean_whoever_shares_it(count: int) -> None:
    generator = np.random.Generator(np.random.PCG64(count))
    vectors = [generator.normal(size=100_003).astype(np.float32) for _ in range(count)]
    weights = generator.integers(1, 1000, count).astype(np.float64)
    fold, found = sums_fold(manifest(), reducer("mean")), list[bytes]()
    for threads in (1, 2, 3):
        shared = WorkShares(threads)

        def spread(work: RangeWork, places: range, shared: WorkShares = shared, threads: int = threads) -> None:
            shared.begin(work, places, threads).wait()

        parts = [
            CountedUpdate(task=str(place), weight=weight, sections={"delta": vector, "metrics": np.ones(2)})
            for place, (vector, weight) in enumerate(zip(vectors, weights.tolist(), strict=True))
        ]
        folded = fold.result(fold.add(fold.init(), parts, spread), {}, spread)
        shared.close()
        found.append(folded.sections["delta"].tobytes())
        expected = np.average(np.array(vectors, np.float64), axis=0, weights=weights)
        np.testing.assert_allclose(folded.sections["delta"], expected, rtol=1e-12, atol=1e-12)
    assert len(set(found)) == 1
