"""The smaller forms in which blobs are downloaded."""

from dataclasses import dataclass

from coterie.server.downloads.compression import Compression
from coterie.server.downloads.deltas import Deltas


@dataclass(frozen=True, kw_only=True)
class Downloads:
    """Each is a cache beside the blobs, which may be deleted at any time."""

    compression: Compression
    deltas: Deltas
