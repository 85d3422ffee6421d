"""Fuzz what reads files of rows, guided by coverage: `make fuzz`, or

    python tests/fuzz/fuzz_records.py [FOLDER] -max_total_time=SECONDS

with atheris in the environment; the options are libFuzzer's. The first byte of an input chooses the reader: a record
file, one whose checksums are made right again first (so that damage gets past them), CSV, JSON lines, or NPZ. A reader
gives rows or raises DataError; anything else, a hang, or more than 1 GiB of memory is a finding.
"""

import io
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris  # pyright: ignore[reportMissingImports]

with atheris.instrument_imports(include=["coterie.compute.data"]):  # pyright: ignore
    import numpy as np

    from coterie.compute.data.record import writer as writing
    from coterie.compute.data.record.layout import Kind
    from coterie.compute.data.record.source import RecordSource
    from coterie.compute.data.source import Column, Source
    from coterie.compute.data.sources.csv.source import CsvSource
    from coterie.compute.data.sources.jsonl import JsonlSource
    from coterie.compute.data.sources.npz import NpzSource
    from coterie.errors import DataError

MOST_ROWS = 1000
LIMITS = ("-rss_limit_mb=1024", "-timeout=10", "-max_len=4096")


def resealed(data: bytes) -> bytes:
    """A record file with every checksum made right, as somebody would who means to deceive."""
    raw, at = bytearray(data), 0
    while at + 32 <= len(raw):
        (length,) = struct.unpack_from("<Q", raw, at + 12)
        end = at + 32 + length
        if end > len(raw):
            break
        if length >= 32 and raw[at + 4] == Kind.INDEX:
            struct.pack_into("<I", raw, end - 4, zlib.crc32(raw[end - 32 : end - 4]))
        struct.pack_into("<I", raw, at + 20, zlib.crc32(raw[at + 32 : end]))
        struct.pack_into("<I", raw, at + 28, zlib.crc32(raw[at : at + 28]))
        at = end
    return bytes(raw)


READERS: tuple[tuple[Callable[[bytes], bytes], Callable[[Path], Source]], ...] = (
    (bytes, lambda path: RecordSource(path, torn="drop")),
    (resealed, lambda path: RecordSource(path, torn="drop")),
    (bytes, lambda path: CsvSource(path)),
    (bytes, JsonlSource),
    (bytes, NpzSource),
)


def read(path: Path, data: bytes) -> None:
    """One input: rows, or DataError."""
    prepare, open_source = READERS[data[0] % len(READERS)] if data else READERS[0]
    path.write_bytes(prepare(data[1:]))
    try:
        source = open_source(path)
        count = min(len(source), MOST_ROWS)
        for name, values in source.rows(np.arange(count)).items():
            if len(values) != count:
                raise RuntimeError(f"{name}: {len(values)} values of {count} rows")
    except DataError:
        pass


def seeds(folder: Path) -> None:
    """Inputs to begin with: a small file of each kind."""
    writing.BLOCK_BYTES = 64
    columns = {"x": Column("int16", (2,)), "s": Column("str"), "i": Column("uint8", (None, 2)), "b": Column("bool")}
    with writing.RecordWriter.create(folder / "a.rec", columns) as writer:
        for _ in range(2):
            rows: dict[str, Any] = {"x": np.ones((3, 2), np.int16), "s": ["", "a", "é"], "b": np.ones(3, np.bool_)}
            writer.write(rows | {"i": [np.zeros((k, 2), np.uint8) for k in range(3)]})
            writer.commit()
    record = (folder / "a.rec").read_bytes()
    (folder / "a.rec").unlink()
    table = b'a,b,"c ""d"""\r\n1,2.5e-3,x\r\n,-7,"y,\nz"\n'
    lines = b'{"a": 1, "b": [0.5, 2], "c": "x"}\n\n{"a": 2, "b": [null, 1], "c": ""}'
    archive = io.BytesIO()
    np.savez(archive, x=np.arange(3.0), s=np.array(["", "a", "é"]))
    for kind, data in enumerate((record, record, table, lines, archive.getvalue())):
        (folder / f"seed{kind}").write_bytes(bytes([kind]) + data)


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus"
        corpus.mkdir()
        seeds(corpus)
        path = folder / "input"
        atheris.Setup([sys.argv[0], *LIMITS, *sys.argv[1:], str(corpus)], lambda data: read(path, data))  # pyright: ignore
        atheris.Fuzz()  # pyright: ignore


if __name__ == "__main__":
    main()
