"""What benchmarks/secagg.py compares with: the removal of masks by several processes, and its primitives alone."""

import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from coterie.privacy.secagg import ring, unmask
from coterie.privacy.secagg.fields import TILE
from coterie.privacy.secagg.masks import MaskSeed, add_masks


def in_processes(
    masked: ring.RingVector, unmasked: ring.RingVector, masks: tuple[MaskSeed, ...], processes: int
) -> dict[str, Any]:
    """How much faster several processes take the masks off: the least of three, by the wall; and by the processor's
    time alone, whole over largest share, which says how the work splits where other programs have the cores.
    """
    alone = together = whole = share = math.inf
    same = True
    largest = max(unmask.split(masked.size, processes), key=lambda part: part[1] - part[0])
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        unmask.remove(masked[: 1 << 16].copy(), masks[:1], pool, processes)
        for _ in range(3):
            total = masked.copy()
            wall, cpu = time.perf_counter(), time.process_time()
            unmask.remove(total, masks)
            alone, whole = min(alone, time.perf_counter() - wall), min(whole, time.process_time() - cpu)
            total = masked.copy()
            wall = time.perf_counter()
            unmask.remove(total, masks, pool, processes)
            together = min(together, time.perf_counter() - wall)
            same = same and bool(np.array_equal(total, unmasked))
            part = masked[slice(*largest)].copy()
            cpu = time.process_time()
            add_masks(part, masks, largest[0])
            share = min(share, time.process_time() - cpu)
    return {
        "processes": processes,
        "removals": 1 / together,
        "removals_alone": 1 / alone,
        "processes_split": round(whole / share, 2),
        "processes_exact": same,
    }


def yardsticks(clock: Callable[[], float]) -> dict[str, float]:
    """What the two primitives cost by themselves: the median of 21."""
    zeros, out = memoryview(bytes(4 * TILE)), bytearray(4 * TILE + 16)
    stream = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
    private = X25519PrivateKey.generate()
    public = X25519PrivateKey.generate().public_key()

    def median(work: Callable[[], object], times: int) -> float:
        found: list[float] = []
        for _ in range(21):
            start = clock()
            for _ in range(times):
                work()
            found.append((clock() - start) / times)
        return statistics.median(found)

    return {
        "aes_ns": round(median(lambda: stream.update_into(zeros, out), 20) / TILE * 1e9, 3),
        "exchange_us": round(median(lambda: private.exchange(public), 20) * 1e6, 1),
    }
