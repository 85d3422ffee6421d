"""The coordinator's clock. Only relative times ever cross the wire; absolute ones stay in rows."""

import time


def now_ms() -> int:
    """Milliseconds since 1970 by the wall clock, which survives a restart.

    A clock set forward makes leases and deadlines run out early; after one is set back they begin anew. In both cases
    every round still ends by name. The phases of secure aggregation begin their time anew (`coterie.server.secure`).
    """
    return time.time_ns() // 1_000_000
