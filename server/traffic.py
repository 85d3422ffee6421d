"""Bytes sent to devices, per experiment."""

from collections import Counter
from collections.abc import Iterable, Mapping


class BlobTraffic:
    """Counts the bytes of blob downloads for the experiments that use the blob.

    Downloads carry no device's name, so a round's ``bytes_down`` is what was sent, after compression, of its
    experiment's blobs (plan, graphs, frozen parts, model versions) since the round before ended: repeated and
    broken-off downloads count, and a blob that several running experiments share counts for each. The counters live in
    memory: what was sent since the last round ended is lost when the process dies.
    """

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}
        self._sent: Counter[str] = Counter()

    def use(self, experiment: str, blobs: Iterable[str]) -> None:
        """From now on downloads of these blobs count for this experiment."""
        for digest in blobs:
            self._users.setdefault(digest, set()).add(experiment)

    def forget(self, running: Mapping[str, object]) -> None:
        """Drop every experiment that is not among these."""
        for digest in list(self._users):
            self._users[digest] &= running.keys()
            if not self._users[digest]:
                del self._users[digest]

    def count_sent(self, digest: str, size: int) -> None:
        """Count bytes of a blob that went out."""
        for experiment in self._users.get(digest, ()):
            self._sent[experiment] += size

    def take(self, experiment: str) -> int:
        """What was sent for this experiment since this was last asked."""
        return self._sent.pop(experiment, 0)
