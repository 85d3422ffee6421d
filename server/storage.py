"""Where a coordinator keeps everything that outlives it."""

from dataclasses import dataclass

from coterie.server.plans import Plans
from coterie.server.store.blobs import BlobStore
from coterie.server.store.engine import Database


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Rows, bytes, and the manifests of plans among the bytes, read once each."""

    database: Database
    blobs: BlobStore
    plans: Plans
