"""Two parties of a private set intersection in one process, who hear each other through queues."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import urandom
from queue import Queue
from typing import Any

from coterie.errors import CoterieError
from coterie.privacy.psi.blinding import PsiKey
from coterie.privacy.psi.exchange import OwnPoints, PsiOutcome, intersect, meet
from coterie.privacy.psi.messages import PsiHello, PsiMessage, PsiResult, PsiTerms, read_psi_message
from tests.patience import patience

Change = Callable[[int, bytes], bytes]
"""Makes what arrives of the nth message (from 0) that is sent."""


class Wire:
    """One end of a wire between two parties. change: what becomes of what this end sends."""

    def __init__(self, out: "Queue[bytes]", coming: "Queue[bytes]", change: Change) -> None:
        self._out, self._coming, self._change = out, coming, change
        self.sent: list[PsiMessage] = []

    def send(self, message: PsiMessage) -> None:
        """To the other end."""
        self._out.put(self._change(len(self.sent), message.to_bytes()))
        self.sent.append(message)

    def give_up(self) -> None:
        """So that the other end does not wait for ever."""
        self._out.put(b"")

    def receive(self, use: Callable[[PsiMessage], bytes]) -> PsiMessage:
        """From the other end."""
        message = read_psi_message(self._coming.get(timeout=patience(20)))
        return PsiMessage(message.head, use(message))


def hello(role: str, ids: int, **changes: Any) -> PsiHello:
    """First words. changes: of the terms, but for the minimum."""
    minimum = changes.pop("minimum", 1)
    terms: dict[str, Any] = {"columns": 1, "rules": ("nfc",), "result": "rows", **changes}
    return PsiHello(role=role, terms=PsiTerms(**terms), ids=ids, minimum=minimum, fresh=urandom(16))


def unchanged(number: int, data: bytes) -> bytes:
    """The change that is none."""
    return data


def both(
    one: Sequence[bytes],
    other: Sequence[bytes],
    *,
    minimum: int = 1,
    told: str = "",
    result: PsiResult = "rows",
    change: Change = unchanged,
    points: Callable[[PsiKey, list[bytes]], OwnPoints] = OwnPoints.blinded,
) -> tuple[Any, Any, Wire, Wire]:
    """What the roles a and b are told, an error being something too, and their ends of the wire.

    change: of what a sends. points: how a makes its points.
    """
    to_a: Queue[bytes] = Queue()
    to_b: Queue[bytes] = Queue()
    wires = (Wire(to_b, to_a, change), Wire(to_a, to_b, unchanged))

    def play(role: str, ids: list[bytes], wire: Wire, make: Callable[..., OwnPoints]) -> PsiOutcome | CoterieError:
        try:
            said = hello(role, len(ids), minimum=minimum, told=told, result=result)
            state = meet(said, wire)
            key = PsiKey.generate()
            return intersect(state, key, make(key, ids), wire)
        except CoterieError as error:
            wire.give_up()
            return error

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(play, "a", [*one], wires[0], points)
        second = pool.submit(play, "b", [*other], wires[1], OwnPoints.blinded)
        return first.result(), second.result(), *wires
