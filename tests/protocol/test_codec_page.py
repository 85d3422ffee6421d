"""A decoder written from docs/codecs.md alone, as a stranger would: no line of it is coterie's.

It decodes the test vectors bit for bit, so that page and payloads say the same.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

ROOT = Path(__file__).parents[2]
VECTORS: dict[str, Any] = json.loads((ROOT / "protocol" / "vectors" / "codecs.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "codecs.md").read_text("utf-8")
CENTROIDS = {
    int(bits): [int(number) for number in numbers.split(", ")]
    for bits, numbers in re.findall(r"^\| ([1-8]) \| ([0-9, ]+) \|$", PAGE, re.MULTILINE)
}
Vector = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


def seed(*texts: str) -> bytes:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(len(text.encode()).to_bytes(4, "little") + text.encode())
    return digest.digest()


HEADER: dict[str, str] = VECTORS["header"]
OWN = seed("coterie-codec-1", "own", HEADER["task"], HEADER["section"])
SHARED = seed("coterie-codec-1", "shared", HEADER["plan"], HEADER["base"], HEADER["section"])


def stream(of: bytes, purpose: str, size: int) -> bytes:
    key = hashlib.sha256(of + purpose.encode()).digest()
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def bits_of(data: bytes) -> Numbers:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(np.int64)


def packed_size(count: int, width: int) -> int:
    return sum((count * field + 7) // 8 for field in (16, 8, 4, 2, 1) if width & field)


def unpacked(data: bytes, count: int, width: int) -> Numbers:
    """Numbers of so many bits, cut into fields of 16, 8, 4, 2 and 1 bits, each an array of its own."""
    found, at, shift = np.zeros(count, np.int64), 0, 0
    for field in (16, 8, 4, 2, 1):
        if width & field:
            size = (count * field + 7) // 8
            bits = bits_of(data[at : at + size])[: count * field].reshape(count, field)
            found += (bits << np.arange(field)).sum(axis=1) << shift
            at, shift = at + size, shift + field
    return found


def rice_run(data: bytes, count: int) -> Numbers:
    k = data[0]
    at = 1 + packed_size(count, k)
    low = unpacked(data[1:at], count, k)
    ends = np.flatnonzero(bits_of(data[at:]))[:count]
    return (np.diff(ends, prepend=-1) - 1 << k) + low


def levels_of(numbers: Numbers) -> Numbers:
    return np.where(numbers % 2 == 1, -(numbers + 1) // 2, numbers // 2)


def counts(length: int, block: int) -> list[int]:
    return [min(block, length - low) for low in range(0, length, block)]


def coded_levels(data: bytes, length: int) -> Numbers:
    parts = counts(length, 4096)
    sizes, at = np.frombuffer(data, "<u2", len(parts)), 2 * len(parts)
    found: list[Numbers] = []
    for count, size in zip(parts, sizes.tolist(), strict=True):
        found.append(levels_of(rice_run(data[at : at + size], count)))
        at += size
    return np.concatenate(found)


def packed_levels(data: bytes, length: int, width: int) -> Numbers:
    found: list[Numbers] = []
    for count in counts(length, 4096):
        size = packed_size(count, width)
        found.append(levels_of(unpacked(data[:size], count, width)))
        data = data[size:]
    return np.concatenate(found)


def selected(fraction: float, length: int) -> Iterator[tuple[Numbers, int]]:
    """The places that each block keeps, and the block's size."""
    words = np.frombuffer(stream(SHARED, "select", 4 * length), "<u4")
    for low in range(0, length, 65536):
        size = min(65536, length - low)
        kept = sorted(range(low, low + size), key=lambda place: (int(words[place]), place))
        yield np.array(sorted(kept[: math.ceil(fraction * size)]), np.int64), size


def rotation_blocks(length: int) -> list[int]:
    rest = -(-(length % 4096) // 64) * 64
    return [4096] * (length // 4096) + [size for size in (4096, 2048, 1024, 512, 256, 128, 64) if rest & size]


def hadamard(vector: Numbers) -> Numbers:
    """H times whole numbers, in Sylvester's order."""
    found, half = vector.copy(), 1
    while half < found.size:
        pairs = found.reshape(-1, 2, half)
        found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return found


def eden(data: bytes, length: int, bits: int) -> Vector:
    signs, marks = (1 - 2 * bits_of(stream(OWN, label, 512)) for label in ("rotate", "spread"))
    table = np.array([*CENTROIDS[bits], *(-number for number in CENTROIDS[bits])])
    found: list[Vector] = []
    for size in rotation_blocks(length):
        scale = np.frombuffer(data, "<f4", 1)[0]
        taken = 4 + packed_size(size, bits)
        turned = signs[:size] * hadamard(table[unpacked(data[4:taken], size, bits)])
        back = np.stack([hadamard(group) for group in turned.reshape(64, size // 64).T], axis=1).reshape(-1)
        found.append((marks[:size].astype(np.float64) * back * np.float64(scale)).astype(np.float32))
        data = data[taken:]
    return np.concatenate(found)[:length]


HALF_WIDTHS = (3, 3, 3, 3, 3.07, 3.23, 3.6, 4, 4.07, 4.36, 4.63, 4.89, 5.14, 5.38, 5.61, 5.83)


def grid(data: bytes, length: int, bits: int, norm: float | None) -> Vector:
    signs = 1 - 2 * bits_of(stream(SHARED, "rotate", 512))
    top, head = 2**bits - 1, 4 if norm is None else 0
    kind = np.float32 if bits <= 12 else np.float64
    found: list[Vector] = []
    for size in rotation_blocks(length):
        if norm is None:
            factor = np.frombuffer(data, "<f4", 1)[0]
        else:
            factor = np.float32(norm * math.sqrt(size / length) * HALF_WIDTHS[bits - 1] / top / size)
        taken = head + packed_size(size, bits)
        turned = hadamard(2 * unpacked(data[head:taken], size, bits) - top).astype(kind)
        found.append((signs[:size].astype(kind) * turned * kind(factor)).astype(np.float32))
        data = data[taken:]
    return np.concatenate(found)[:length]


def powersgd(data: bytes, segments: list[int], rows: list[int], rank: int) -> Vector:
    values, found = np.frombuffer(data, "<f4"), list[Vector]()
    for size, high in zip(segments, rows, strict=True):
        wide = size // high
        if high == 1 or rank > min(high, wide) or rank * (high + wide) >= size:
            found.append(values[:size])
            values = values[size:]
            continue
        left, right = (part.reshape(-1, rank) for part in np.split(values[: rank * (high + wide)], [rank * high]))
        total = np.outer(left[:, 0], right[:, 0])
        for place in range(1, rank):
            total += np.outer(left[:, place], right[:, place])
        found.append(total.reshape(-1))
        values = values[rank * (high + wide) :]
    return np.concatenate(found)


def by_segment(numbers: npt.NDArray[Any], segments: list[int]) -> npt.NDArray[Any]:
    return np.repeat(numbers, segments, axis=0)


def decoded(name: str, data: bytes, segments: list[int], rows: list[int]) -> npt.NDArray[Any]:
    """What a payload stands for, by the page's table."""
    length = sum(segments)
    coded = name.endswith("+rice")
    family, _, parameter = name.removesuffix("+rice").partition(":")
    if family in ("float32", "float64", "float16"):
        kind = {"float32": "<f4", "float64": "<f8", "float16": "<f2"}[family]
        return np.frombuffer(data, kind).astype(np.float64 if family == "float64" else np.float32)
    if family == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if family == "int8":
        each = rows if parameter == "channel" else [1] * len(segments)
        scales = np.frombuffer(data, "<f4", sum(each))
        widths = [size // count for size, count in zip(segments, each, strict=True) for _ in range(count)]
        body = data[4 * len(scales) :]
        levels = coded_levels(body, length) if coded else np.frombuffer(body, np.int8)
        return levels.astype(np.float32) * by_segment(scales, widths)
    if family in ("qsgd", "terngrad", "round"):
        block = 512 if family == "qsgd" else 4096
        width = {"qsgd": parameter, "terngrad": 2, "round": 0}[family]
        units = np.frombuffer(data, "<f4", len(counts(length, block)))
        body = data[4 * len(units) :]
        packed = not coded and family != "round"
        levels = packed_levels(body, length, int(width)) if packed else coded_levels(body, length)
        return levels.astype(np.float32) * by_segment(units, counts(length, block))
    if family == "sign":
        magnitudes = by_segment(np.frombuffer(data, "<f4", len(segments)), segments)
        return np.where(bits_of(data[4 * len(segments) :])[:length] == 1, -magnitudes, magnitudes)
    if family == "topk":
        return topk(data, length)
    if family in ("eden", "drive"):
        return eden(data, length, int(parameter.partition(":")[0] or 1))
    if family == "rotate+grid":
        bits, colon, norm = parameter.partition(":")
        return grid(data, length, int(bits), float(norm) if colon else None)
    if family == "powersgd":
        return powersgd(data, segments, rows, int(parameter))
    vector = np.zeros(length, np.float32)
    if family == "randk":
        for places, size in selected(float(parameter), length):
            vector[places] = np.frombuffer(data, "<f4", len(places)) * np.float32(size / len(places))
            data = data[4 * len(places) :]
        return vector
    assert family == "diff_sparse_quant"
    edges = by_segment(np.frombuffer(data, "<f8", 2 * len(segments)).reshape(-1, 2), segments)
    data = data[16 * len(segments) :]
    for places, _ in selected(float(parameter or 0.4), length):
        least, largest = edges[places].T
        levels = np.frombuffer(data, np.int8, len(places)).astype(np.float64)
        vector[places] = (levels + 128) * ((largest - least) / 255) + least
        data = data[len(places) :]
    return vector


def topk(data: bytes, length: int) -> Vector:
    parts = counts(length, 65536)
    heads, at = np.frombuffer(data, "<u4", 2 * len(parts)).reshape(-1, 2).astype(np.int64), 8 * len(parts)
    places: list[int] = []
    for block, (kept, size) in enumerate(heads.tolist()):
        if kept:
            places += (np.cumsum(rice_run(data[at : at + size], kept) + 1) - 1 + 65536 * block).tolist()
        at += size
    vector = np.zeros(length, np.float32)
    vector[places] = np.frombuffer(data[at:], "<f4")
    return vector


def told(case: dict[str, Any]) -> str:
    return f"{case['codec']}, {case['name']}"


@pytest.mark.parametrize("case", VECTORS["cases"], ids=told)
def test_a_payload_decodes_as_the_page_says(case: dict[str, Any]) -> None:
    found = decoded(case["codec"], bytes.fromhex(case["payload"]), case["segments"], case["rows"])
    assert found.tobytes().hex() == case["decoded"]


@pytest.mark.parametrize("case", VECTORS["long"], ids=told)
def test_a_long_payload_decodes_as_the_page_says(case: dict[str, Any]) -> None:
    found = decoded(case["codec"], bytes.fromhex(case["payload"]), case["segments"], [1] * len(case["segments"]))
    assert hashlib.sha256(found.tobytes()).hexdigest() == case["decoded_sha256"]
