"""Randomness that every language can reproduce: the AES-256-CTR key stream of a 32-byte seed.

The key is the seed, the first counter block is zero, counters are 128-bit big-endian (NIST SP 800-38A), and the stream
is read from any byte on. Seeds are SHA-256 of texts (`seed_of`); a seed for another purpose is SHA-256 of the seed and
a label (`derive`).
"""

import hashlib

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_BLOCK = 16


def seed_of(*parts: str) -> bytes:
    """SHA-256 of texts, each as UTF-8 with its length (4 bytes, little-endian) before it: a seed of 32 bytes."""
    digest = hashlib.sha256()
    for part in parts:
        text = part.encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return digest.digest()


def derive(seed: bytes, label: str) -> bytes:
    """A seed (32 bytes) for one purpose."""
    return hashlib.sha256(seed + label.encode("ascii")).digest()


def stream(seed: bytes, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of the seed's key stream."""
    first = start // _BLOCK
    cipher = Cipher(algorithms.AES(seed), modes.CTR(first.to_bytes(_BLOCK, "big"))).encryptor()
    whole = cipher.update(bytes(stop - first * _BLOCK))
    return whole[start - first * _BLOCK :]


def words(seed: bytes, start: int, stop: int) -> npt.NDArray[np.uint32]:
    """32-bit little-endian words [start, stop) of the stream."""
    return np.frombuffer(stream(seed, 4 * start, 4 * stop), "<u4")


def long_words(seed: bytes, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """64-bit little-endian words [start, stop) of the stream."""
    return np.frombuffer(stream(seed, 8 * start, 8 * stop), "<u8")


def uniforms(seed: bytes, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Numbers [start, stop), uniform in [0, 1): the upper 24 bits of each word times 2**-24, exact in float32."""
    return (words(seed, start, stop) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def signs(seed: bytes, count: int) -> npt.NDArray[np.float32]:
    """The first `count` signs: bit i of the stream (lowest bit of a byte first) is 1 for -1, 0 for +1."""
    bits = np.unpackbits(np.frombuffer(stream(seed, 0, (count + 7) // 8), np.uint8), count=count, bitorder="little")
    return np.float32(1) - np.float32(2) * bits.astype(np.float32)
