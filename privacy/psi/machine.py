"""The exchange between two parties as a table: which messages may come in which phase, and what is due then.

No input, no output, no secrets: a host sends what `DUE` says on entering a phase, and gives `step` the head of every
message that comes. Points, tags and links come in buckets, and the phase ends with the last of them.

Each party blinds its ids and shows the points in rising order. Each makes tags of the partner's points, and shows them
in rising order: now both know how many are common, and nothing more, since nobody can tell whose point a tag was. Only
if these are enough does each show which of the partner's points has which tag. Who is not told shows these things and
is shown none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeAlias

from coterie import errors
from coterie.privacy.psi.messages import (
    BUCKET,
    NO_JOB,
    WIDTHS,
    PsiHead,
    PsiHello,
    PsiKind,
    PsiMessage,
    PsiResult,
    job_of,
    read_hello,
    refused_message,
)


class PsiPhase(Enum):
    """Where a party is."""

    GREETING = "greeting"
    BLINDING = "blinding"
    MIXING = "mixing"
    COUNTING = "counting"
    LINKING = "linking"
    DONE = "done"
    REFUSED = "refused"


class PsiPart(Enum):
    """What a party does: is told, tells, or both."""

    BOTH = "both"
    TOLD = "told"
    TELLING = "telling"


_P, _K = PsiPhase, PsiKind
_Phases: TypeAlias = Mapping[PsiPhase, Mapping[PsiKind, PsiPhase]]
# What a party goes through that is told. Alone, it gives the verdict that ends counting itself.
_LEARNS_ROWS: Final[_Phases] = {
    _P.GREETING: {_K.HELLO: _P.BLINDING},
    _P.BLINDING: {_K.POINTS: _P.MIXING},
    _P.MIXING: {_K.TAGS: _P.COUNTING},
    _P.COUNTING: {_K.ENOUGH: _P.LINKING, _K.FEW: _P.REFUSED},
    _P.LINKING: {_K.LINKS: _P.DONE},
}
_LEARNS_COUNT: Final[_Phases] = {
    _P.GREETING: {_K.HELLO: _P.BLINDING},
    _P.BLINDING: {_K.POINTS: _P.MIXING},
    _P.MIXING: {_K.TAGS: _P.COUNTING},
    _P.COUNTING: {_K.ENOUGH: _P.DONE, _K.FEW: _P.REFUSED},
}
TRANSITIONS: Final[Mapping[tuple[PsiPart, PsiResult], _Phases]] = {
    (PsiPart.BOTH, "rows"): _LEARNS_ROWS,
    (PsiPart.BOTH, "count"): _LEARNS_COUNT,
    (PsiPart.TOLD, "rows"): _LEARNS_ROWS,
    (PsiPart.TOLD, "count"): _LEARNS_COUNT,
    (PsiPart.TELLING, "rows"): {
        _P.GREETING: {_K.HELLO: _P.BLINDING},
        _P.BLINDING: {_K.POINTS: _P.COUNTING},
        _P.COUNTING: {_K.ENOUGH: _P.LINKING, _K.FEW: _P.REFUSED},
    },
    (PsiPart.TELLING, "count"): {
        _P.GREETING: {_K.HELLO: _P.BLINDING},
        _P.BLINDING: {_K.POINTS: _P.COUNTING},
        _P.COUNTING: {_K.ENOUGH: _P.DONE, _K.FEW: _P.REFUSED},
    },
}
"""What ends each phase, and the next one. In a phase that is not here nothing may come."""
DUE: Final[Mapping[PsiPart, Mapping[PsiPhase, str]]] = {
    PsiPart.BOTH: {
        _P.GREETING: "hello",
        _P.BLINDING: "points",
        _P.MIXING: "tags",
        _P.COUNTING: "verdict",
        _P.LINKING: "links",
    },
    PsiPart.TOLD: {_P.GREETING: "hello", _P.BLINDING: "points", _P.COUNTING: "verdict"},
    PsiPart.TELLING: {_P.GREETING: "hello", _P.BLINDING: "points", _P.COUNTING: "tags", _P.LINKING: "links"},
}
"""What a party sends on entering a phase."""


@dataclass(frozen=True)
class PsiState:
    """Where a party is in a job.

    own, other: what this party and the partner said first.
    taken: items of the awaited kind that have come.
    verdict: what this party's verdict is over, once it is given.
    """

    part: PsiPart
    own: PsiHello
    phase: PsiPhase = PsiPhase.GREETING
    other: PsiHello | None = None
    job: bytes = NO_JOB
    taken: int = 0
    verdict: bytes = field(default=b"", repr=False)

    @property
    def minimum(self) -> int:
        """Fewer in common than this are not shown."""
        return max(self.own.minimum, 1 if self.other is None else self.other.minimum)

    @property
    def awaited(self) -> frozenset[PsiKind]:
        """The kinds of which a message may come now."""
        return frozenset(TRANSITIONS[self.part, self.own.terms.result].get(self.phase, ()))


def begin(own: PsiHello) -> PsiState:
    """A party that has not said anything yet."""
    told = own.terms.told
    part = PsiPart.BOTH if not told else PsiPart.TOLD if told == own.role else PsiPart.TELLING
    return PsiState(part, own)


def greet(state: PsiState, message: PsiMessage) -> PsiState:
    """After the partner's first words.

    Raises errors.InputError (``psi_message``), errors.Conflict (``psi_terms``) where its terms are others. It sees the
    same, so that both know that nothing begins.
    """
    _check_kind(state, message.head)
    other = read_hello(message)
    if message.head.job != NO_JOB or other.role == state.own.role:
        raise refused_message("its first words are of another job or role")
    if other.fresh == state.own.fresh:
        raise refused_message("its first words repeat what this party drew, so they are not fresh")
    differing = differences(state.own, other)
    if differing:
        raise errors.Conflict(
            f"{other.role} aligns otherwise than this party: {'; '.join(differing)}.",
            hint="Nothing of an id has left. Agree on the same columns, rules and result, and call again, both of you.",
            code="psi_terms",
        )
    return _entered(replace(state, other=other, job=job_of(state.own, other)), PsiKind.HELLO)


def step(state: PsiState, head: PsiHead) -> PsiState:
    """After a bucket, of which the body is used already, or soon. Raises errors.InputError (``psi_message``)."""
    _check_kind(state, head)
    if state.other is None or head.kind not in WIDTHS:
        raise refused_message(f"{head.kind.name.lower()} does not come in buckets")
    _check_job(state, head)
    whole = state.other.ids if head.kind is PsiKind.POINTS else state.own.ids
    bucket, due = state.taken // BUCKET, min(BUCKET, whole - state.taken)
    if (head.bucket, head.items) != (bucket, due):
        raise refused_message(
            f"it is bucket {head.bucket} of {head.kind.name.lower()}, with {head.items} items, where bucket {bucket} "
            f"with {due} is due"
        )
    taken = state.taken + head.items
    return _entered(state, head.kind) if taken == whole else replace(state, taken=taken)


def judge(state: PsiState, common: int, digest: bytes) -> tuple[PsiState, PsiMessage]:
    """This party's verdict on the count, and the state after it.

    common: how many tags both have.
    digest: over these tags. Where too few are common it is not told.
    """
    kind = PsiKind.ENOUGH if common >= state.minimum else PsiKind.FEW
    message = PsiMessage(PsiHead(kind=kind, job=state.job), digest if kind is PsiKind.ENOUGH else b"")
    if state.part is PsiPart.TOLD:
        return _entered(state, kind), message
    return replace(state, verdict=bytes((kind,)) + message.body), message


def heed(state: PsiState, message: PsiMessage) -> PsiState:
    """After the partner's verdict. Raises errors.InputError (``psi_message``, ``psi_verdict``)."""
    head = message.head
    _check_kind(state, head)
    _check_job(state, head)
    if head.kind in WIDTHS or len(message.body) != (32 if head.kind is PsiKind.ENOUGH else 0):
        raise refused_message(f"a verdict {head.kind.name.lower()} has {len(message.body)} bytes")
    if state.part is PsiPart.BOTH and state.verdict != bytes((head.kind,)) + message.body:
        raise errors.InputError(
            "The partner found other common ids than this party.",
            hint="One of the two programs is wrong, or not honest. End the session.",
            code="psi_verdict",
        )
    return _entered(state, head.kind)


def differences(own: PsiHello, other: PsiHello) -> list[str]:
    """In which terms two parties differ, in words."""
    mine, theirs = own.terms, other.terms
    said = (
        ("an id has {} columns, not {}", theirs.columns, mine.columns),
        ("the rules for ids are {}, not {}", ", ".join(theirs.rules) or "none", ", ".join(mine.rules) or "none"),
        ("the result is {}, not {}", theirs.result, mine.result),
        ("it is told to {}, not to {}", theirs.told or "both", mine.told or "both"),
    )
    return [text.format(their, my) for text, their, my in said if their != my]


def _entered(state: PsiState, kind: PsiKind) -> PsiState:
    return replace(state, phase=TRANSITIONS[state.part, state.own.terms.result][state.phase][kind], taken=0)


def _check_kind(state: PsiState, head: PsiHead) -> None:
    if head.kind not in state.awaited:
        due = " or ".join(sorted(kind.name.lower() for kind in state.awaited)) or "nothing"
        raise refused_message(f"it is {head.kind.name.lower()}, where {due} is due")


def _check_job(state: PsiState, head: PsiHead) -> None:
    if head.job != state.job:
        raise refused_message(f"it is {head.kind.name.lower()} of another job")
