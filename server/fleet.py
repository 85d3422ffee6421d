"""Who is around, in memory: when devices were last seen, what they say of their data, how long they were told to wait.

For selection and pace steering, and every few minutes for the rows. A restart forgets it, and everything that reads it
does without.
"""

from coterie.protocol.device import DataReport

ACTIVE_MS = 15 * 60 * 1000
RECOUNT_MS = 1000


class Fleet:
    """Remembers the last time of every device that this process has heard of."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._unwritten: dict[str, int] = {}
        self._populations: dict[str, dict[str, int]] = {}
        self._reports: dict[str, DataReport] = {}
        self._pauses: dict[str, int] = {}
        self._without_task: set[str] = set()
        self._count = 0
        self._counted_at = 0

    def saw(self, device: str, now: int, population: str = "") -> None:
        """Note that a device was here."""
        self._seen[device] = self._unwritten[device] = now
        self._populations.setdefault(population, {})[device] = now

    def around(self, population: str, since: int) -> list[str]:
        """The devices of a population that were here since then."""
        return [device for device, at in self._populations.get(population, {}).items() if at >= since]

    def keep_report(self, device: str, report: DataReport | None) -> None:
        """Keep what a device says of its data now; None when it says nothing, which forgets what it said before."""
        if report is None:
            self._reports.pop(device, None)
        else:
            self._reports[device] = report

    def report(self, device: str) -> DataReport | None:
        """What a device said of its data when it last checked in."""
        return self._reports.get(device)

    def looks_for_task(self, device: str) -> None:
        """Note that a device holds no task, before its rows are read to see whether that is so: whatever is noted of
        it meanwhile then counts.
        """
        self._without_task.add(device)

    def holds_a_task(self, device: str) -> None:
        """Note that a device may hold a task."""
        self._without_task.discard(device)

    def without_task(self, device: str) -> bool:
        """Whether a device certainly holds no task; only its rows know it of a device not heard of lately."""
        return device in self._without_task

    def paused(self, population: str, milliseconds: int) -> None:
        """Note the longest wait that a device of this population was just told."""
        self._pauses[population] = milliseconds

    def longest_pause_ms(self, population: str) -> int:
        """How long the devices of a population are told to wait at most between two check-ins."""
        return self._pauses.get(population, 0)

    def last(self, device: str) -> int | None:
        """When a device was last here, if since the start."""
        return self._seen.get(device)

    def count(self, now: int, population: str | None = None) -> int:
        """How many devices, of one population or of all, were here in the last quarter of an hour, as of at most a
        second ago. A clock that was set back leaves times in the future, which say as little as those long past.
        """
        if abs(now - self._counted_at) > RECOUNT_MS:
            self._seen = {device: at for device, at in self._seen.items() if abs(now - at) < ACTIVE_MS}
            self._populations = {
                name: {device: at for device, at in members.items() if abs(now - at) < ACTIVE_MS}
                for name, members in self._populations.items()
            }
            self._reports = {device: said for device, said in self._reports.items() if device in self._seen}
            self._without_task &= self._seen.keys()
            self._count, self._counted_at = len(self._seen), now
        return self._count if population is None else len(self._populations.get(population, {}))

    def take_unwritten(self) -> dict[str, int]:
        """What the rows do not know yet."""
        taken, self._unwritten = self._unwritten, {}
        return taken
