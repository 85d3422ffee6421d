"""The running sum of an attempt's masked vectors: a file that is only a cache, and names what it holds.

Masked vectors are added while they arrive, one in memory at a time and packed as it came, so that neither memory nor
the work that is left at the end grows with the number of clients. What is promised stands in rows and in the vectors'
own files: where the cache is missing, is broken or holds what it should not, the sum is made anew from those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coterie import errors
from coterie.privacy.secagg.masked_file import TENSOR as MASKED
from coterie.privacy.secagg.masked_file import MaskedHeader, check_masked
from coterie.privacy.secagg.ring import RingVector, VectorSpec, add_packed
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.tensors import TensorLimits, open_tensors, write_file

TENSOR = "total"
HOLDS = "holds"
ATTEMPT = "attempt"
SPEC = "spec"
_HEADER_BYTES = 1 << 22


@dataclass(frozen=True)
class Summands:
    """The masked vectors of a sum.

    header: what every masked vector's file names, whatever its task.
    tasks: whose vectors these are.
    read: the bytes of one of them, by its task.
    """

    header: MaskedHeader
    spec: VectorSpec
    tasks: frozenset[str]
    read: Callable[[str], bytes]


@dataclass(frozen=True)
class PartialSum:
    """The sum of the masked vectors that have come so far.

    total: modulo 2**32 in every coordinate, of which the segment's lowest bits count.
    holds: the tasks, sorted.
    """

    total: RingVector
    holds: tuple[str, ...]


def sum_masked(cache: Path, summands: Summands) -> PartialSum:
    """The sum of exactly these masked vectors, made of what the cache holds of them and of the others, which are read
    one after another; the cache holds it afterwards.

    Memory is a few times one vector. Raises errors.UpdateRefused for a file that is not what its header must say,
    errors.StorageError.
    """
    cached = _cached(cache, summands)
    missing = sorted(summands.tasks - set(cached.holds))
    for task in missing:
        expected = replace(summands.header, task=task)
        file = check_masked(summands.read(task), expected, summands.spec)
        add_packed(cached.total, file.read_bytes(MASKED, 0, summands.spec.packed_bytes), summands.spec)
    made = PartialSum(cached.total, tuple(sorted(summands.tasks)))
    if missing or not cache.exists():
        write_file(cache, {TENSOR: made.total}, _names(summands, made.holds))
    return made


def _cached(cache: Path, summands: Summands) -> PartialSum:
    """What the cache holds; nothing unless it is a part of what is wanted."""
    nothing = PartialSum(np.zeros(summands.spec.length, np.uint32), ())
    if not cache.exists():
        return nothing
    try:
        file = open_tensors(cache, _limits(summands.spec))
        holds = _tasks(file.metadata)
        same = file.metadata.get(ATTEMPT) == summands.header.attempt and file.metadata.get(SPEC) == summands.spec.digest
        if not same or not summands.tasks.issuperset(holds) or file.tensors[TENSOR].shape != nothing.total.shape:
            return nothing
        return PartialSum(file.read(TENSOR), holds)
    except (errors.TensorFileError, errors.InputError, KeyError):
        return nothing


def _names(summands: Summands, tasks: Sequence[str]) -> dict[str, str]:
    holds = canonical_json(list(tasks)).decode("ascii")
    return {ATTEMPT: summands.header.attempt, SPEC: summands.spec.digest, HOLDS: holds}


def _tasks(metadata: Mapping[str, str]) -> tuple[str, ...]:
    found = parse_json(metadata.get(HOLDS, "[]").encode())
    return tuple(str(task) for task in found) if isinstance(found, list) else ()


def _limits(spec: VectorSpec) -> TensorLimits:
    most = 4 * spec.length + 2 * _HEADER_BYTES
    return TensorLimits(max_bytes=most, max_header_bytes=_HEADER_BYTES, max_tensors=1, dtypes=frozenset({"U32"}))
