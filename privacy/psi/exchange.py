"""One party's side of the exchange from its first words to what it is told, over a host that carries messages.

The host is asked for the same things in the same order however often it is begun again: so one that keeps what it was
given resumes by calling once more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.psi.blinding import POINT_BYTES, PsiKey, blind_ids, mix, reordered, sorted_places
from coterie.privacy.psi.machine import DUE, PsiPhase, PsiState, begin, greet, heed, judge, step
from coterie.privacy.psi.matching import CommonTags, SortedTags, common_tags, linked_rows
from coterie.privacy.psi.messages import BUCKET, WIDTHS, PsiHead, PsiHello, PsiKind, PsiMessage

Mix: TypeAlias = Callable[[PsiKey, bytes, bytes], bytes]
"""`coterie.privacy.psi.blinding.mix`, or the same over several processes."""


class PsiHost(Protocol):
    """Carries the messages of one job."""

    def send(self, message: PsiMessage) -> None:
        """Send the next message."""
        ...

    def receive(self, use: Callable[[PsiMessage], bytes]) -> PsiMessage:
        """The next message, with what ``use`` makes of it as its body; where that was made before, it is not made
        again.
        """
        ...


@dataclass(frozen=True)
class OwnPoints:
    """A party's blinded ids in rising order, which says nothing of the order of its rows.

    order: the row of each.
    buckets: gives the points, `BUCKET` at a time.
    """

    order: NDArray[np.int64]
    buckets: Callable[[], Iterator[bytes]]

    @staticmethod
    def of(points: bytes) -> "OwnPoints":
        """Of points in the order of the rows."""
        order = sorted_places(points, POINT_BYTES)
        packed = reordered(points, POINT_BYTES, order)
        return OwnPoints(order, lambda: in_buckets(packed, POINT_BYTES))

    @staticmethod
    def blinded(key: PsiKey, ids: list[bytes]) -> "OwnPoints":
        """Of ids, one a row."""
        return OwnPoints.of(blind_ids(key, ids))


@dataclass(frozen=True)
class PsiOutcome:
    """What a party is told.

    is_refused: whether too few ids are common; then there is nothing else.
    count: how many are common; None for a party that is not told.
    rows: which of its rows these are, in an order that is the same at both parties; None where only the count is told.
    """

    is_refused: bool = False
    count: int | None = None
    rows: NDArray[np.int64] | None = None


def meet(own: PsiHello, host: PsiHost) -> PsiState:
    """Say the first words, and hear the partner's. Raises as `greet` does."""
    host.send(PsiMessage(PsiHead(kind=PsiKind.HELLO), own.to_bytes()))
    state = begin(own)

    def checked(message: PsiMessage) -> bytes:
        # What differs in terms is kept all the same, so that it differs again.
        return message.body

    return greet(state, host.receive(checked))


def intersect(state: PsiState, key: PsiKey, own: OwnPoints, host: PsiHost, mixing: Mix = mix) -> PsiOutcome:
    """All that comes after the first words.

    Raises errors.InputError (``psi_message``, ``psi_points``, ``psi_verdict``), and what the host raises.
    """
    made, common = SortedTags.of(b""), CommonTags(np.empty(0, np.int64), b"")
    rows: NDArray[np.int64] | None = None
    while True:
        match DUE[state.part].get(state.phase):
            case "points":
                _send(host, state, PsiKind.POINTS, own.buckets())
            case "tags":
                _send(host, state, PsiKind.TAGS, in_buckets(made.packed, WIDTHS[PsiKind.TAGS]))
            case "verdict":
                state, message = judge(state, common.count, common.digest)
                host.send(message)
            case "links":
                packed = made.ranks.astype(">u4").tobytes()
                _send(host, state, PsiKind.LINKS, in_buckets(packed, WIDTHS[PsiKind.LINKS]))
            case _:
                pass
        if PsiKind.POINTS in state.awaited:
            state, tags = _taken(state, host, partial(mixing, key, state.job))
            made = SortedTags.of(tags)
        elif PsiKind.TAGS in state.awaited:
            state, tags = _taken(state, host, bytes)
            common = common_tags(tags, made.packed)
        elif PsiKind.LINKS in state.awaited:
            state, links = _taken(state, host, bytes)
            rows = linked_rows(links, own.order, common)
        elif state.awaited:
            state = _heard(state, host)
        else:
            break
    if state.phase is PsiPhase.REFUSED:
        return PsiOutcome(is_refused=True)
    told = state.own.terms.told in ("", state.own.role)
    return PsiOutcome(count=common.count if told else None, rows=rows)


def in_buckets(packed: bytes, width: int) -> Iterator[bytes]:
    """Items of ``width`` bytes, `BUCKET` of them at a time."""
    for place in range(0, len(packed), BUCKET * width):
        yield packed[place : place + BUCKET * width]


def _send(host: PsiHost, state: PsiState, kind: PsiKind, bodies: Iterator[bytes]) -> None:
    for bucket, body in enumerate(bodies):
        head = PsiHead(kind=kind, job=state.job, bucket=bucket, items=len(body) // WIDTHS[kind])
        host.send(PsiMessage(head, body))


def _taken(state: PsiState, host: PsiHost, use: Callable[[bytes], bytes]) -> tuple[PsiState, bytes]:
    """All buckets of a phase, and what is made of them."""
    phase, found = state.phase, bytearray()
    while state.phase is phase:
        message = host.receive(partial(_used, state, use))
        state = step(state, message.head)
        found += message.body
    return state, bytes(found)


def _used(state: PsiState, use: Callable[[bytes], bytes], message: PsiMessage) -> bytes:
    step(state, message.head)  # before anything costly is made of it
    return use(message.body)


def _heard(state: PsiState, host: PsiHost) -> PsiState:
    """After the partner's verdict, which is kept only if it is one."""

    def checked(message: PsiMessage) -> bytes:
        heed(state, message)
        return message.body

    return heed(state, host.receive(checked))
