"""The job that makes a delta between two model versions. It runs in a worker process: files in, a file out."""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.protocol.delta import encode_delta
from coterie.server.store.blob_reader import BlobReader


def delta_job(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Write the delta from the blob ``old`` to the blob ``new`` to ``out``.

    Answers whether it pays: whether it has at most the share ``pays`` of the new file's bytes.
    """
    reader, what = BlobReader.from_json(arguments["blobs"]), "a model version"
    size = reader.range_of("blobs", arguments["new"], what).size
    if size == 0 or reader.range_of("blobs", arguments["old"], what).size != size:
        return {"pays": False}
    limit, written = size * arguments["pays"], 0
    with (
        reader.local_copy("blobs", arguments["old"], what, check=False) as old,
        reader.local_copy("blobs", arguments["new"], what, check=False) as new,
    ):
        with (
            old.open("rb") as old_file,
            new.open("rb") as wanted,
            Path(arguments["out"]).open("wb") as out,
            mmap.mmap(old_file.fileno(), 0, access=mmap.ACCESS_READ) as before,
            mmap.mmap(wanted.fileno(), 0, access=mmap.ACCESS_READ) as after,
        ):
            for piece in encode_delta(before, after) or ():
                written += len(piece)
                if written > limit:
                    return {"pays": False}
                out.write(piece)
    return {"pays": True}
