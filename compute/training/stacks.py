"""Batches, several at a time, made ready in a thread of their own while the last ones are used."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, cast

import numpy as np

from coterie.compute import tree
from coterie.compute.optim.optimizer import check_whole
from coterie.errors import InputError


class Stacks:
    """An iterator over stacks of ``size`` batches, trees of arrays [size, ...] made of trees of arrays [...].

    The next stack is made while the caller works with the last one, so the source is read up to two stacks ahead, by
    one other thread. The last stack may be shorter. What the source raises is raised where its stack would have come.
    Raises InputError for a size below one and for batches that differ in structure or shape.
    """

    def __init__(self, source: Iterable[Any], size: int) -> None:
        check_whole("Stacks", sink_size=size)
        if not isinstance(cast(object, source), Iterable):
            raise InputError(f"Stacks: batches must be an iterable, got a {type(source).__name__}.")
        self._source = iter(source)
        self._size = size
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coterie-stacks")
        self._next: Future[Any] | None = self._pool.submit(self._make)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._next is None:
            raise StopIteration
        future, self._next = self._next, None
        try:
            stack = future.result()
        except BaseException:
            self._pool.shutdown(wait=False)
            raise
        if stack is None:
            self._pool.shutdown(wait=False)
            raise StopIteration
        self._next = self._pool.submit(self._make)
        return stack

    def close(self) -> None:
        """Stop reading ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._next = None

    def _make(self) -> Any:
        batches = list(islice(self._source, self._size))
        if not batches:
            return None
        try:
            return tree.map_tree(lambda *rows: np.stack([np.asarray(row) for row in rows]), *batches)
        except ValueError as error:
            raise InputError(
                f"Batches of different shapes cannot be stacked: {error}", hint="Give batches of one fixed shape."
            ) from error
