"""Sync points: what the consumer says reaches the rows that come after, and only those."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from coterie.compute.data import BatchStream, Context, Transform
from coterie.compute.data.batched import Batched
from coterie.errors import ArgumentValueError, InputError
from tests.compute.data.pipelines import Delay, Jitter, is_even, numbered, same


@dataclass(frozen=True)
class Level(Transform):
    """The value of the sync point ``level``."""

    def apply(self, value: Any, context: Context) -> Any:
        return context.signals["level"]


@dataclass(frozen=True)
class Easy(Transform):
    """Whether a row is easy enough for the level."""

    def apply(self, value: Any, context: Context) -> Any:
        return value < context.signals["level"]


def levelled(workers: int = 0, *, filtered: bool = False) -> Batched:
    rows = numbered(24).map(Delay(0.001), "id")
    rows = rows.filter(is_even, "id") if filtered else rows
    return (
        rows.map(Level(), "id", outputs="level").batch(4).epochs(3).workers(workers)
        .sync_wait("level", every=3, initial=0)
    )  # fmt: skip


def followed(stream: BatchStream) -> list[list[int]]:
    """The levels of each batch, where the consumer raises the level after every third."""
    found: list[list[int]] = []
    for step, batch in enumerate(stream, 1):
        found.append(batch["level"].tolist())
        if step % 3 == 0:
            stream.sync_update("level", step)
    return found


@pytest.mark.capability("F11")
@pytest.mark.parametrize("workers", [0, 1, 8])
@pytest.mark.parametrize("filtered", [False, True])
def test_no_row_is_made_before_the_value_that_it_is_to_see_is_known(workers: int, filtered: bool) -> None:
    with levelled(workers, filtered=filtered).stream() as stream:
        found = followed(stream)
    assert found == [[step // 3 * 3] * 4 for step in range(9 if filtered else 18)]


@pytest.mark.capability("F11")
def test_a_curriculum_follows_what_the_consumer_sees() -> None:
    """Harder rows as soon as the easy ones are known: the feedback loop that sync points are for."""
    batches = (
        numbered(40).shuffle(3).filter(Easy(), "id").batch(4).epochs(None).workers(4)
        .sync_wait("level", every=2, initial=8)
    )  # fmt: skip
    hardest, level, known = list[int](), 8, set[int]()
    with batches.stream() as stream:
        for step in range(1, 13):
            batch = next(stream)
            seen = batch["id"][batch["sample_weight"] > 0].tolist()
            assert max(seen) < level
            known |= set(seen)
            if step % 2 == 0:
                level = 40 if len(known) >= level else level
                stream.sync_update("level", level)
            hardest.append(max(seen))
    assert max(hardest[:2]) < 8 <= max(hardest[2:])


@pytest.mark.capability("F11", "F13")
def test_signals_are_part_of_the_state() -> None:
    with levelled(2).stream() as stream:
        whole = [*followed(stream)]
    for stop in (2, 3, 4, 6):
        stream = levelled(3).stream()
        for step in range(1, stop + 1):
            next(stream)
            if step % 3 == 0:
                stream.sync_update("level", step)
        state = json.loads(json.dumps(stream.state()))
        stream.close()
        resumed = levelled().stream()
        resumed.restore(state)
        rest: list[list[int]] = []
        for step, batch in enumerate(resumed, stop + 1):
            rest.append(batch["level"].tolist())
            if step % 3 == 0:
                resumed.sync_update("level", step)
        assert rest == whole[stop:]


@pytest.mark.capability("F11")
def test_a_sync_point_that_nobody_updates_is_named_instead_of_waited_for() -> None:
    stream = levelled().stream()
    for _ in range(3):
        next(stream)
    with pytest.raises(InputError, match="Batch 3 waits for the sync point 'level'.*sync_update") as caught:
        next(stream)
    assert caught.value.reason == "data_sync"
    with pytest.raises(ArgumentValueError, match="no sync point 'levle'; there are level"):
        levelled().stream().sync_update("levle", 1)


@pytest.mark.capability("F11")
def test_sync_points_of_several_speeds() -> None:
    batches = (
        numbered(40).map(Jitter(), "x").batch(4).workers(2)
        .sync_wait("a", every=2, initial=0).sync_wait("b", every=3, initial=0)
    )  # fmt: skip
    with batches.stream() as stream:
        found = [next(stream)]
        for step in range(1, 10):
            if step % 2 == 0:
                stream.sync_update("a", step)
            if step % 3 == 0:
                stream.sync_update("b", step)
            found.append(next(stream))
    assert same(found, numbered(40).map(Jitter(), "x").batch(4)) == 10
