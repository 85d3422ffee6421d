"""Logging: one JSON object per line on standard error, also for what libraries log. What must stay secret is never
passed to a logger; this cuts it out all the same.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog
from structlog.typing import Processor

BURST: Final = 10
PERIOD_S: Final = 30.0
_MOST_KEPT: Final = 1000
_SECRET = re.compile(r"(coterie_[a-z]+_[0-9a-f]{32}_)[A-Za-z0-9-]+")


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut the secret out of anything that looks like a token."""
    return {key: _SECRET.sub(r"\1…", value) if isinstance(value, str) else value for key, value in event.items()}


class Sparing:
    """Lets equal warnings and errors through so often in a period; the first one after it says how many were left out.
    A stranger who can cause one could else fill the disk with them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}

    def left_out(self, key: tuple[object, ...]) -> int | None:
        """How many equal lines were left out before this one; None where it is left out too."""
        now = self._clock()
        begun, count = self._seen.get(key, (now, 0))
        if now - begun >= PERIOD_S:
            self._seen[key] = (now, 1)
            return max(count - BURST, 0)
        if len(self._seen) >= _MOST_KEPT and key not in self._seen:
            self._seen = {known: (at, n) for known, (at, n) in self._seen.items() if now - at < PERIOD_S}
            if len(self._seen) >= _MOST_KEPT:
                self._seen.clear()
        self._seen[key] = (begun, count + 1)
        return 0 if count < BURST else None

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """As a processor of structlog."""
        if method not in ("warning", "error", "exception", "critical"):
            return event
        left_out = self.left_out((event.get("event"), str(event.get("why")), event.get("experiment")))
        if left_out is None:
            raise structlog.DropEvent
        return {**event, "left_out": left_out} if left_out else event

    def filter(self, record: logging.LogRecord) -> bool:
        """As a filter of the library's logging."""
        return self.left_out((record.name, record.msg)) is not None


def configure(level: str) -> None:
    """Log from this level on: debug, info, warning or error."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    spare = Sparing()
    stamp: tuple[Processor, ...] = (
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    write: tuple[Processor, ...] = (structlog.processors.format_exc_info, redact, structlog.processors.JSONRenderer())
    structlog.configure(
        processors=[spare, *stamp, *write],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    libraries = logging.StreamHandler(sys.stderr)
    libraries.addFilter(spare)
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=stamp, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *write]
        )
    )
    logging.basicConfig(handlers=[libraries], level=max(number, logging.WARNING))
