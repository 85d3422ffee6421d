"""Many ciphertexts at once, in this process or over several.

Each batch takes a seed of 32 bytes that is used for it alone: fresh from `os.urandom`, or derived from such a seed that
is kept, so that a program that was killed makes the same ciphertexts again. Random exponents are the seed's AES-256-CTR
stream, `CHUNK` ciphertexts to a part of it, so the result does not depend on the number of processes.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ArgumentValueError
from coterie.privacy.entropy import Entropy
from coterie.privacy.he.arithmetic import Arithmetic, fast
from coterie.privacy.he.combining import combine, weigh
from coterie.privacy.he.fixed_base import window_for
from coterie.privacy.he.keys import PaillierPrivateKey, PaillierPublicKey
from coterie.privacy.he.packing import SlotPacking
from coterie.privacy.he.paillier import Decryption, Paillier, with_private, with_public
from coterie.privacy.he.wire import Ciphers, to_bytes, to_numbers
from coterie.randomness import derive, stream

Result = TypeVar("Result")

CHUNK: Final = 256
"""Ciphertexts that one process makes at a time."""


class _Tools:
    """What one process needs for a key."""

    def __init__(self, key: PaillierPublicKey | PaillierPrivateKey, arithmetic: Arithmetic, window: int) -> None:
        self.paillier: Paillier
        self.decryption: Decryption | None
        if isinstance(key, PaillierPrivateKey):
            self.paillier = with_private(key, arithmetic, window=window)
            self.decryption = Decryption(key, arithmetic)
        else:
            self.paillier, self.decryption = with_public(key, arithmetic, window=window), None


class CipherPool:
    """Encryption, sums and decryption of whole arrays under one key. To be closed.

    key: a private key where numbers are decrypted; whoever has it alone encrypts faster.
    processes: how many work. Above 1 they are spawned: a script that uses more needs ``if __name__ == "__main__"``.
    expected: about how many ciphertexts will be made or blinded, for the size of tables (`fixed_base.window_for`).
    arithmetic: for one process; gmpy2's when not given, and always in others.
    Raises ArgumentValueError (``processes``), ConfigurationError (``extra_missing``).
    """

    def __init__(
        self,
        key: PaillierPublicKey | PaillierPrivateKey,
        *,
        processes: int = 1,
        expected: int = 1000,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        if processes < 1:
            raise ArgumentValueError(
                f"There must be at least one process, not {processes}.", hint="Take 1.", code="processes"
            )
        window = window_for(expected // processes)
        self.public = key.public if isinstance(key, PaillierPrivateKey) else key
        self.arithmetic = arithmetic or fast()
        self._key, self._local = key, None if processes > 1 else _Tools(key, self.arithmetic, window)
        self._executor: ProcessPoolExecutor | None = None
        if processes > 1:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(
                processes, mp_context=context, initializer=_start, initargs=(key, window)
            )

    def close(self) -> None:
        """End the processes."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def __enter__(self) -> "CipherPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def encrypt(self, numbers: Sequence[int], seed: bytes) -> Ciphers:
        """A fresh ciphertext of each number. seed: for this batch alone.

        Raises ArgumentValueError (``plaintext_range``).
        """
        parts = [(list(numbers[at : at + CHUNK]), _part(seed, at)) for at in range(0, len(numbers), CHUNK)]
        return self._joined(self._run(_encrypt, parts))

    def decrypt(self, ciphers: Ciphers) -> list[int]:
        """The numbers of ciphertexts that were looked at (`wire.check_ciphers`)."""
        # Decryption takes ten times as long as encryption, and there are few.
        size = CHUNK // 16
        parts = [(ciphers[at : at + size],) for at in range(0, len(ciphers), size)]
        return [number for part in self._run(_decrypt, parts) for number in part]

    def sum_groups(self, ciphers: Ciphers, groups: NDArray[Any], counts: Sequence[int]) -> list[Ciphers]:
        """For each column of groups, the sums of the ciphertexts that have the same number in it.

        groups: ``[count, columns]``, whole numbers, each below its column's entry of ``counts``.
        Returns ``[counts[c], width]`` for each column c: a sum of nothing is 1, which everybody reads as 0. To be
        blinded before they are sent.
        """
        parts = [(ciphers, np.ascontiguousarray(groups[:, c]), counts[c]) for c in range(groups.shape[1])]
        return self._run(_sum_groups, parts)

    def join(self, ciphers: Ciphers, packing: SlotPacking, each: int, seed: bytes) -> Ciphers:
        """Ciphertexts of ``each`` numbers, as many as go into one joined, and blinded.

        seed: for this batch alone.
        """
        size = packing.slots // each
        parts = [(ciphers[at : at + size], packing, each, _part(seed, at)) for at in range(0, len(ciphers), size)]
        return self._joined(self._run(_join, parts))

    def combine_rows(self, ciphers: Ciphers, weights: NDArray[np.int64], factors: NDArray[np.int64]) -> Ciphers:
        """For each column j of factors, Σ_i factors[i, j] Σ_k weights[i, k] number[i, k], to be blinded before they are
        sent.

        ciphers: ``[rows * K, width]``, the K of a row one after the other.
        weights: ``[rows, K]``, from 0 on.
        factors: ``[rows, columns]``, of either sign.
        Returns ``[columns, width]``.
        """
        each = weights.shape[1]
        parts = [
            (ciphers[at * each : (at + CHUNK) * each], weights[at : at + CHUNK], factors[at : at + CHUNK])
            for at in range(0, len(weights), CHUNK)
        ]
        return self.add(*self._run(_combine_rows, parts))

    def add(self, *parts: Ciphers) -> Ciphers:
        """The sums of arrays of ciphertexts, place by place, to be blinded before they are sent."""
        total = to_numbers(parts[0], self.arithmetic)
        square = self.arithmetic.number(self.public.square)
        for part in parts[1:]:
            pairs = zip(total, to_numbers(part, self.arithmetic), strict=True)
            total = [one * other % square for one, other in pairs]
        return to_bytes(total, self.public)

    def blind(self, ciphers: Ciphers, added: Sequence[int], seed: bytes) -> Ciphers:
        """Ciphertexts with known numbers added, which nobody can connect with the given ones.

        added: a number for each, 0 for none. seed: for this batch alone.
        Raises ArgumentValueError (``plaintext_range``).
        """
        parts = [
            (ciphers[at : at + CHUNK], list(added[at : at + CHUNK]), _part(seed, at))
            for at in range(0, len(ciphers), CHUNK)
        ]
        return self._joined(self._run(_blind, parts))

    def _joined(self, parts: Iterable[Ciphers]) -> Ciphers:
        return np.concatenate([np.empty((0, self.public.width), np.uint8), *parts])

    def _run(self, work: Callable[..., Result], parts: Sequence[tuple[Any, ...]]) -> list[Result]:
        if self._local is not None:
            return [work(self._local, *part) for part in parts]
        if self._executor is None:  # closed, or never opened: one of both is there
            return []
        return list(self._executor.map(_in_process, [work] * len(parts), parts))


def _encrypt(tools: _Tools, numbers: list[int], seed: bytes) -> Ciphers:
    entropy = _entropy(seed)
    return to_bytes((tools.paillier.encrypt(number, entropy) for number in numbers), tools.paillier.key)


def _decrypt(tools: _Tools, ciphers: Ciphers) -> list[int]:
    if tools.decryption is None:
        raise ArgumentValueError("The public key does not decrypt.", hint="Give the private key.", code="public_key")
    return [tools.decryption.decrypt(cipher) for cipher in to_numbers(ciphers, tools.paillier.arithmetic)]


def _sum_groups(tools: _Tools, ciphers: Ciphers, groups: NDArray[Any], count: int) -> Ciphers:
    square = tools.paillier.square
    sums = [tools.paillier.zero()] * count
    # `Paillier.add`, without a call for each of millions of additions.
    for group, cipher in zip(groups.tolist(), to_numbers(ciphers, tools.paillier.arithmetic), strict=True):
        sums[group] = sums[group] * cipher % square
    return to_bytes(sums, tools.paillier.key)


def _combine_rows(tools: _Tools, ciphers: Ciphers, weights: NDArray[np.int64], factors: NDArray[np.int64]) -> Ciphers:
    paillier, each = tools.paillier, weights.shape[1]
    numbers, square = to_numbers(ciphers, paillier.arithmetic), paillier.square
    rows = [
        combine(numbers[row * each : (row + 1) * each], of_row, square) for row, of_row in enumerate(weights.tolist())
    ]
    columns = (weigh(rows, column, square, paillier.arithmetic) for column in factors.T.tolist())
    return to_bytes(columns, paillier.key)


def _blind(tools: _Tools, ciphers: Ciphers, added: list[int], seed: bytes) -> Ciphers:
    paillier, entropy = tools.paillier, _entropy(seed)
    numbers = to_numbers(ciphers, paillier.arithmetic)
    return to_bytes(
        (paillier.blind(paillier.shift(c, more), entropy) for c, more in zip(numbers, added, strict=True)),
        paillier.key,
    )


def _join(tools: _Tools, ciphers: Ciphers, packing: SlotPacking, each: int, seed: bytes) -> Ciphers:
    joined = packing.join(tools.paillier, to_numbers(ciphers, tools.paillier.arithmetic), each)
    return to_bytes([tools.paillier.blind(joined, _entropy(seed))], tools.paillier.key)


def _part(seed: bytes, at: int) -> bytes:
    return derive(seed, f"from {at}")


def _entropy(seed: bytes) -> Entropy:
    """The seed's stream, read on with every call."""
    position = 0

    def read(count: int) -> bytes:
        nonlocal position
        position += count
        return stream(seed, position - count, position)

    return read


_own: list[_Tools] = []


def _start(key: PaillierPublicKey | PaillierPrivateKey, window: int) -> None:
    """In a new process, once."""
    _own[:] = [_Tools(key, fast(), window)]


def _in_process(work: Callable[..., Result], part: tuple[Any, ...]) -> Result:
    return work(_own[0], *part)
