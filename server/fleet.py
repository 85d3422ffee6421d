"""When devices were last seen, in memory: for pace steering, and for the rows every few minutes."""

ACTIVE_MS = 15 * 60 * 1000
RECOUNT_MS = 1000


class Fleet:
    """Remembers the last time of every device that this process has heard of."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._unwritten: dict[str, int] = {}
        self._count = 0
        self._counted_at = 0

    def saw(self, device: str, now: int) -> None:
        """Note that a device was here."""
        self._seen[device] = self._unwritten[device] = now

    def last(self, device: str) -> int | None:
        """When a device was last here, if since the start."""
        return self._seen.get(device)

    def count(self, now: int) -> int:
        """How many devices were here in the last quarter of an hour, as of at most a second ago."""
        if now - self._counted_at > RECOUNT_MS:
            self._seen = {device: at for device, at in self._seen.items() if now - at < ACTIVE_MS}
            self._count, self._counted_at = len(self._seen), now
        return self._count

    def take_unwritten(self) -> dict[str, int]:
        """What the rows do not know yet."""
        taken, self._unwritten = self._unwritten, {}
        return taken
