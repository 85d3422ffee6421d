"""Blinding of many ids in this process, or in several."""

from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Final

from coterie.privacy.psi.blinding import POINT_BYTES, PsiKey, blind_ids, check_points, mix

BATCH: Final = 2048
"""Ids that a process is given at a time: about a tenth of a second."""


@dataclass(frozen=True)
class Blinding:
    """The two things that take long.

    blind: as `coterie.privacy.psi.blinding.blind_ids`. mix: as `coterie.privacy.psi.blinding.mix`.
    """

    blind: Callable[[PsiKey, list[bytes]], bytes]
    mix: Callable[[PsiKey, bytes, bytes], bytes]


@contextmanager
def blinding(workers: int) -> Generator[Blinding]:
    """The work over so many processes; the bytes are the same however many there are."""
    if workers == 1:
        yield Blinding(blind_ids, mix)
        return

    # Spawned: a fork would hold this process's connections and locks.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:

        def blind(key: PsiKey, ids: list[bytes]) -> bytes:
            batches = [ids[place : place + BATCH] for place in range(0, len(ids), BATCH)]
            return b"".join(pool.map(partial(blind_ids, key), batches))

        def mixed(key: PsiKey, job: bytes, points: bytes) -> bytes:
            check_points(points)  # whole: a batch does not know its place in the message
            size = BATCH * POINT_BYTES
            batches = [points[place : place + size] for place in range(0, len(points), size)]
            return b"".join(pool.map(partial(mix, key, job), batches))

        yield Blinding(blind, mixed)
