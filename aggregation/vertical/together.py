"""Programs of several parties in one process: what they say goes from hand to hand, as the bytes that they would
send.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from coterie.aggregation.vertical.exchange import NOTHING, Hear, Heard, Side, Tell, read_message_of, write_message
from coterie.errors import InternalError


def run_together(sides: Mapping[str, Side[Any]], sent: dict[str, int]) -> dict[str, Any]:
    """Run programs until each has ended, and what each returns.

    sent: is added to: bytes by role.
    Raises InternalError where all wait; and what a program raises.
    """
    letters: dict[tuple[str, str], deque[bytes]] = {}
    asked: dict[str, Tell | Hear] = {}
    results: dict[str, Any] = {}

    def go_on(role: str, heard: Heard | None) -> None:
        try:
            asked[role] = next(sides[role]) if heard is None else sides[role].send(heard)
        except StopIteration as end:
            results[role] = end.value

    for role in sides:
        go_on(role, None)
    while len(results) < len(sides):
        moved = False
        for role in [role for role in sides if role not in results]:
            while role not in results:
                step = asked[role]
                if isinstance(step, Tell):
                    body = write_message(step, 0)
                    sent[role] = sent.get(role, 0) + len(body)
                    letters.setdefault((role, step.role), deque()).append(body)
                    heard: Heard | None = NOTHING
                else:
                    heard = _next(letters, role, step)
                if heard is None:
                    break
                moved = True
                go_on(role, heard)
        if not moved:
            raise InternalError(f"Every party waits: {', '.join(sorted({*sides} - {*results}))}.")
    return results


def _next(letters: dict[tuple[str, str], deque[bytes]], role: str, hear: Hear) -> Heard | None:
    """The message that a role waits for, if it has come."""
    waiting = letters.get((hear.role, role))
    return read_message_of(waiting.popleft(), hear, 0) if waiting else None
