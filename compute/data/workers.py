"""Who makes rows: the caller, threads, or processes (see processes.py)."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coterie.compute.data.batching import Batch, Batching
from coterie.compute.data.block import Block, Empty
from coterie.compute.data.slots import HELD, Lender, Room
from coterie.compute.data.stage import Job, Kind, Located, Spent, Stage

Crew = Literal["threads", "processes"]


@dataclass(frozen=True)
class Piece:
    """Rows to make. whole: (pass, number of the batch) where they are exactly one batch, which is then finished too."""

    located: Located
    signals: Mapping[str, Any] = field(default_factory=dict[str, Any])
    whole: tuple[int, int] | None = None


@dataclass(frozen=True)
class Made:
    """What was made of a piece: its rows, as columns, or its batch; and how long it took."""

    block: Block
    batch: Batch | None
    spent: Mapping[Kind, Spent]


@dataclass(frozen=True)
class Making:
    """All that a worker has to know: the pipeline and its batches. Sent once to every process."""

    stage: Stage
    batching: Batching

    def __call__(self, piece: Piece, empty: Empty = np.empty) -> Made:
        """The rows, or the batch. empty: where their arrays are to be made."""
        job = Job(piece.signals)
        block = self.stage.make(piece.located, job)
        with job.timed("map"):
            # Stacking rows is work, too: it belongs here and not to whoever waits for the batch.
            rows = Block(columns=block.as_columns(empty), index=block.index)
            if piece.whole is None:
                return Made(rows, None, job.spent)
            batch = self.batching.batch(rows.as_columns(), *piece.whole, piece.signals)
        return Made(Block(columns={}), batch, job.spent)


class Workers(ABC):
    """Pieces are handed in in order; what was made of each can be waited for."""

    @abstractmethod
    def submit(self, piece: Piece) -> Callable[[], Made]:
        """Begin a piece. The function that it returns waits for the result, and raises what the work raised."""

    @abstractmethod
    def close(self) -> None:
        """Forget what is not begun, and wait for the rest."""


class Alone(Workers):
    """The caller makes each piece when it wants it."""

    def __init__(self, making: Making) -> None:
        self._making = making

    def submit(self, piece: Piece) -> Callable[[], Made]:
        return lambda: self._making(piece)

    def close(self) -> None:
        pass


class Threads(Workers):
    """``count`` threads. ahead: how many pieces will be begun and not taken at a time; they and a few that a consumer
    holds take turns in the same memory, for the system hands out new memory slowly, and to one thread at a time.
    """

    def __init__(self, making: Making, count: int, ahead: int) -> None:
        self._making = making
        self._lender = Lender(ahead + HELD)
        self._pool = ThreadPoolExecutor(count, "coterie-data")
        self._end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def submit(self, piece: Piece) -> Callable[[], Made]:
        room = Room(self._lender.lend().bytes)
        return self._pool.submit(self._making, piece, room.empty).result

    def close(self) -> None:
        if self._end.detach() is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
