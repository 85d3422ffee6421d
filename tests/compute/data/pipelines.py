"""Operations that can be found by import, as worker processes need them, and what is compared."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.compute.data import ArraySource, Column, Context, Dataset, Source, Transform
from coterie.compute.data.source import Rows
from coterie.compute.ir import NDArray


def numbered(rows: int) -> Dataset:
    """Rows with their number as ``id`` and a little more."""
    ids = np.arange(rows)
    return Dataset.of(ArraySource({"id": ids, "x": np.stack([ids, ids * 0.5], axis=1).astype(np.float32)}))


def double(value: Any) -> Any:
    return value * 2


def is_even(value: Any) -> bool:
    return value % 2 == 0


def not_third(value: Any) -> bool:
    return value % 3 != 2


@dataclass(frozen=True)
class Jitter(Transform):
    """A random number added."""

    def apply(self, value: Any, context: Context) -> Any:
        return value + np.float32(context.random.uniform())


@dataclass(frozen=True)
class Delay(Transform):
    """Some milliseconds of sleep that nobody can foresee."""

    longest: float = 0.002

    def apply(self, value: Any, context: Context) -> Any:
        time.sleep(self.longest * (time.perf_counter_ns() % 97) / 97)
        return value


def augmented(rows: int) -> Dataset:
    """A chain with a bit of everything."""
    return numbered(rows).shuffle(7).map(Jitter(), "x").filter(not_third, "id").map([double, Jitter()], "x", seed=3)


def same(left: Iterable[Mapping[str, Any]], right: Iterable[Mapping[str, Any]]) -> int:
    """Assert the same batches or rows, bit for bit, and give their number."""
    ones, others = list(left), list(right)
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            a, b = np.asarray(one[name]), np.asarray(other[name])
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return len(ones)


def fail_at_seven(value: Any) -> Any:
    if value == 7:
        raise ValueError("seven")
    return value


def through(gate: Any) -> int:
    """The process that works on the row, once the file is there for which it waits, if for any."""
    until = time.monotonic() + 20
    while gate and not os.path.exists(gate) and time.monotonic() < until:
        time.sleep(0.005)
    return os.getpid()


def policy(value: Any) -> int:
    """How the system shares the processor with this thread."""
    return os.sched_getscheduler(0)


def die_at_seven(value: Any) -> Any:
    if value == 7:
        os._exit(3)
    return value


def write(value: Any) -> Any:
    value[:] = 9
    return value


def widened(value: Any) -> Any:
    """A megabyte of one number."""
    return np.full((512, 512), value, np.float32)


def mirrored(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with images the other way round, as a view of where they are."""
    return {**batch, "wide": batch["wide"][:, ::-1], "half": np.asfortranarray(batch["half"])}


def sleep_long(value: Any) -> Any:
    """The first four rows come at once, the others late."""
    time.sleep(0 if value < 4 else 0.5)
    return value


class TwoWords(Exception):
    """An exception that is made of two values and says one text, which therefore cannot be sent."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


@dataclass(frozen=True)
class Unreadable(Source):
    """Rows that nobody can read."""

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"id": Column("int64")}

    def __len__(self) -> int:
        return 4

    def rows(self, indices: NDArray) -> Rows:
        raise TwoWords("of two", "words")
