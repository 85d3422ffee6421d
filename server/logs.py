"""Logging: one JSON object per line on standard error, also for what libraries log. What must stay secret is never
passed to a logger; this cuts it out all the same.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog
from structlog.typing import Processor

_SECRET = re.compile(r"(coterie_(?:admin|enrol|edge)_[0-9a-f]{32}_)[A-Za-z0-9-]+")


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut the secret out of anything that looks like a token."""
    return {key: _SECRET.sub(r"\1…", value) if isinstance(value, str) else value for key, value in event.items()}


def configure(level: str) -> None:
    """Log from this level on: debug, info, warning or error."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    stamp: tuple[Processor, ...] = (
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    write: tuple[Processor, ...] = (structlog.processors.format_exc_info, redact, structlog.processors.JSONRenderer())
    structlog.configure(
        processors=[*stamp, *write],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    libraries = logging.StreamHandler(sys.stderr)
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=stamp, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *write]
        )
    )
    logging.basicConfig(handlers=[libraries], level=max(number, logging.WARNING))
