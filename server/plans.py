"""Manifests of stored plans, read once each: they are immutable."""

import asyncio

from coterie.aggregation.plan.manifest import Manifest
from coterie.server.store.blobs import BlobStore


class Plans:
    """Remembers the manifests that this process has read, up to a bound."""

    def __init__(self, blobs: BlobStore, bound: int = 64) -> None:
        self._blobs = blobs
        self._bound = bound
        self._known: dict[str, Manifest] = {}

    async def manifest(self, plan: str) -> Manifest:
        """The manifest of a plan that was checked when its experiment was created."""
        if plan not in self._known:
            data = await asyncio.to_thread(self._blobs.path("blobs", plan).read_bytes)
            if len(self._known) >= self._bound:
                self._known.pop(next(iter(self._known)))
            self._known[plan] = Manifest.from_bytes(data)
        return self._known[plan]
