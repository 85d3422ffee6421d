"""Which rows two parties of a session have in common, without showing each other the ids of the others.

Both make the same call. First they tell each other by which terms, and how many ids they have; where the terms differ
nothing has begun, and each may make the right call. A program that was killed is started again and makes the same call:
it goes on where it was, and one that is done returns at once what it returned.

A stage of a session holds one alignment. For another, such as that of rows for a test, make the session with another
stage.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import urandom
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.party.alignment_ids import IdRows, RowIds, read_ids
from coterie.client_sdk.party.alignment_store import AlignmentProgress, AlignmentStore
from coterie.client_sdk.party.alignment_work import Blinding, blinding
from coterie.client_sdk.party.faults import AlignmentFaults
from coterie.client_sdk.party.message_log import EXPIRED
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.session import Incoming
from coterie.errors import ArgumentValueError, Conflict, CoterieError, InputError, RemoteError
from coterie.privacy.entropy import draw
from coterie.privacy.psi.blinding import PsiKey
from coterie.privacy.psi.exchange import OwnPoints, PsiOutcome, intersect, meet
from coterie.privacy.psi.ids import DEFAULT_RULES
from coterie.privacy.psi.messages import (
    MOST_IDS,
    PsiHello,
    PsiMessage,
    PsiResult,
    PsiTerms,
    most_bytes,
    read_psi_message,
)
from coterie.protocol.disclosures import Disclosure, DisclosureKind
from coterie.protocol.session import PartyRole

Refusal = TypeVar("Refusal", bound=CoterieError)

STAGE: Final = "align"
"""The stage of a session in which rows are aligned, where no other is named."""
MINIMUM: Final = 10
MOST: Final = 10_000_000


@dataclass(frozen=True)
class Aligned:
    """What an alignment tells a party.

    count: how many ids are common; None where only the partner is told.
    rows: the numbers of this party's rows with these ids, from 0, ``[count]``: entry i is about the same person at both
        parties. None where only the partner is told.
    """

    count: int | None
    rows: NDArray[np.int64] | None


def align(
    session: Session,
    rows: IdRows | RowIds,
    ids: Sequence[str] = ("id",),
    *,
    rules: Collection[str] = DEFAULT_RULES,
    told: str | None = None,
    minimum: int = MINIMUM,
    most: int = MOST,
    stage: str = STAGE,
    workers: int = 1,
    patience_s: float | None = None,
) -> Aligned:
    """Which rows are about somebody whom the partner has rows of too. **The partner learns the same of its own.**

    session: of two roles, joined already, with the stage.
    rows, ids, rules: see `coterie.client_sdk.party.alignment_ids.read_ids`; or what it has returned.
    told: the role that alone is told, the same at both parties; both are when not given.
    minimum: where fewer ids are common nobody is told which, nor how many. The larger one of both parties holds.
    most: of the partner's ids: one that could try every id that there is would learn all of this party's.
    workers: processes that reckon; with more than one a script needs ``if __name__ == "__main__":``.
    patience_s: how long to wait for each message, for a partner that has not joined, and for a coordinator that is
        away; for as long as it takes when not given.

    Guarantees: the same result whenever a process was killed and called again. The secret key is new for each
    alignment, never leaves the party's folder, and is deleted with the alignment.
    Raises DataError for ids that cannot be used; Conflict (``psi_terms``) where the partner aligns otherwise,
    (``session_step``) where an earlier program has begun another alignment in this stage; InputError
    (``intersection_small``, ``align_partner``, ``psi_message``, ``psi_points``, ``psi_verdict``, ``stage_unknown``);
    ArgumentValueError; StorageError; and as `Session.send` and `Session.receive` do.
    """
    found = rows if isinstance(rows, RowIds) else read_ids(rows, ids, rules=rules)
    return _Alignment(session, stage, patience_s, workers, most).run(found, told, minimum, "rows")


def count_common(
    session: Session,
    rows: IdRows | RowIds,
    ids: Sequence[str] = ("id",),
    *,
    rules: Collection[str] = DEFAULT_RULES,
    told: str | None = None,
    minimum: int = MINIMUM,
    most: int = MOST,
    stage: str = STAGE,
    workers: int = 1,
    patience_s: float | None = None,
) -> int | None:
    """How many ids are common; which, nobody learns. None where only the partner is told.

    Parameters and errors are those of `align`.
    """
    found = rows if isinstance(rows, RowIds) else read_ids(rows, ids, rules=rules)
    return _Alignment(session, stage, patience_s, workers, most).run(found, told, minimum, "count").count


def partner_of(session: Session) -> PartyRole:
    """The one partner of a session. Raises InputError (``align_partner``) where there are several."""
    own = session.membership.role
    first, *others = [role for role in session.membership.terms.roles if role.name != own]
    if others:
        names = ", ".join(f"{role.party} (role {role.name})" for role in (first, *others))
        raise InputError(
            f"Alignment is between two parties, and session {session.membership.name} has more: beside {own} "
            f"there are {names}.",
            hint="Align pairs in sessions of their own, if each pair may know what it has in common.",
            code="align_partner",
        )
    return first


def is_aligned(session: Session, stage: str = STAGE) -> bool:
    """Whether the alignment in a stage is done, in this program or an earlier one. Raises StorageError."""
    folder = session.folder_of_alignment(stage)
    if not folder.exists():
        return False
    with closing(AlignmentStore(folder)) as store:
        return store.result() is not None


class _Alignment:
    """One call: the host of `coterie.privacy.psi.exchange` over a session and a folder."""

    def __init__(self, session: Session, stage: str, patience_s: float | None, workers: int, most: int) -> None:
        if workers < 1:
            raise ArgumentValueError("workers is at least 1.")
        self._partner = partner_of(session)
        if stage not in session.membership.terms.stages:
            raise InputError(
                f"Session {session.membership.name} has no stage {stage[:64]!r}.",
                hint=f"Make it with one (`coterie sessions make --stage {STAGE}`), or name one of its stages: "
                f"{', '.join(session.membership.terms.stages)}.",
                code="stage_unknown",
            )
        self._session, self._stage = session, stage
        self._patience_s, self._workers, self._most = patience_s, workers, most
        self._faults = AlignmentFaults.from_environment()
        self._sent = self._received = 0
        self._step = ""

    def run(self, ids: RowIds, told: str | None, minimum: int, result: PsiResult) -> Aligned:
        """The result, from now or from an earlier program."""
        asked = self._asked(ids, told, minimum, result)
        folder = self._session.folder_of_alignment(self._stage)
        with closing(AlignmentStore(folder)) as store:
            done = store.result()
            if done is not None:
                if not done[0].same_as(asked):
                    raise self._other_call()
                return self._aligned(done[1], done[0])
            progress, key = self._begun(store, asked)
            outcome = self._worked(store, progress, key, ids.ids)
            store.finish(progress, outcome)
            self._session.finish(self._stage, self._step)
            self._faults.reach("result_kept")
            return self._aligned(outcome, progress)

    def _asked(self, ids: RowIds, told: str | None, minimum: int, result: PsiResult) -> AlignmentProgress:
        roles = {role.name for role in self._session.membership.terms.roles}
        if told is not None and told not in roles:
            raise ArgumentValueError(
                f"told={told!r} is no role of session {self._session.membership.name}.",
                hint=f"Its roles are {', '.join(sorted(roles))}.",
                code="role_unknown",
            )
        if not 1 <= minimum <= MOST_IDS:
            raise ArgumentValueError(f"minimum is from 1 to {MOST_IDS}, not {minimum}.")
        terms = PsiTerms(columns=len(ids.columns), rules=ids.rules, result=result, told=told or "")
        hello = PsiHello(
            role=self._session.membership.role,
            terms=terms,
            ids=len(ids.ids),
            minimum=minimum,
            fresh=draw(urandom, 16),
        )
        return AlignmentProgress(number=0, ids=ids.digest, hello=hello)

    def _begun(self, store: AlignmentStore, asked: AlignmentProgress) -> tuple[AlignmentProgress, PsiKey]:
        """The attempt to go on with, the partner having said the same."""
        found = store.attempt()
        if found is not None and not found[0].is_over and not found[0].same_as(asked):
            # An earlier program has said other terms. Only if the partner says others too has nothing begun.
            try:
                self._meet(store, found[0])
            except Conflict as error:
                if error.reason != "psi_terms":
                    raise
                found = store.attempt()
            else:
                raise self._other_call()
        if found is None or found[0].is_over:
            progress = replace(asked, number=0 if found is None else found[0].number + 1)
            key = PsiKey.generate()
            store.begin(progress, key)
            self._faults.reach("begun")
        else:
            progress, key = found
        return self._meet(store, progress), key

    def _meet(self, store: AlignmentStore, progress: AlignmentProgress) -> AlignmentProgress:
        """Agree with the partner. Raises Conflict (``psi_terms``), the attempt being over then."""
        self._sent = self._received = progress.number
        self._step = f"align {progress.number}"
        told = _told(progress.hello, self._partner.name, self._step)
        self._session.disclose(self._stage, *told)
        host = _Host(self, store)
        try:
            state = meet(progress.hello, host)
        except Conflict as error:
            store.keep(replace(progress, is_over=True))
            raise self._named(error) from error
        except InputError as error:
            raise self._named(error) from error
        if state.other is not None and state.other.ids > self._most:
            raise InputError(
                f"{self._who} brings {state.other.ids} ids, more than the {self._most} that most= allows.",
                hint="Whoever tries very many ids learns who is among this party's. If the number is right, allow it.",
                code="align_partner",
            )
        if not progress.is_agreed:
            progress = replace(progress, is_agreed=True)
            store.keep(progress)
            self._faults.reach("agreed")
        return progress

    def _worked(self, store: AlignmentStore, progress: AlignmentProgress, key: PsiKey, ids: list[bytes]) -> PsiOutcome:
        self._sent = self._received = progress.number
        host = _Host(self, store)
        try:
            with blinding(self._workers) as work:
                return intersect(meet(progress.hello, host), key, self._points(store, key, ids, work), host, work.mix)
        except InputError as error:
            raise self._named(error) from error

    def _points(self, store: AlignmentStore, key: PsiKey, ids: list[bytes], work: Blinding) -> OwnPoints:
        """This party's points, made now or by an earlier program."""
        places = store.places()
        if places is None:
            made = OwnPoints.of(work.blind(key, ids))
            places = made.order
            store.add_points([*made.buckets()], places)
            self._faults.reach("blinded")

        def buckets() -> Iterator[bytes]:
            bucket = 0
            while (body := store.points(bucket)) is not None:
                yield body
                bucket += 1

        return OwnPoints(places, buckets)

    def send(self, message: PsiMessage) -> None:
        """Send the next message; one that was sent before is not sent twice."""
        self._session.send(
            self._stage,
            self._partner.name,
            message.to_bytes(),
            sequence=self._sent,
            step=self._step,
            patience_s=self._patience_s,
        )
        self._sent += 1

    def receive(self, store: AlignmentStore, use: Callable[[PsiMessage], bytes]) -> PsiMessage:
        """The next message, as it was kept."""
        number = self._received
        kept = store.taken(number)
        if kept is None:
            kept = self._fetched(store, number, use)
        self._received = number + 1
        return kept

    def _fetched(self, store: AlignmentStore, number: int, use: Callable[[PsiMessage], bytes]) -> PsiMessage:
        while True:
            incoming = self._incoming()
            if incoming.sequence >= number:
                break
            # It was kept; the process ended before it was acknowledged.
            self._session.acknowledge(incoming, patience_s=self._patience_s)
        if incoming.sequence > number:
            raise RemoteError(
                f"Message {number} from {self._who} in stage {self._stage} was acknowledged and is not in "
                f"{store.folder}.",
                hint="Use the folder in which this alignment was begun, or align in another stage or session.",
                code="message_order",
            )
        data = bytearray()
        for chunk in self._session.chunks(incoming):
            data += chunk
            if len(data) > most_bytes():
                raise InputError(
                    f"Message {number} from {self._who} in stage {self._stage} is longer than any of an alignment.",
                    hint="Ask the partner which program it runs, and align in another stage or session.",
                    code="message_too_large",
                )
        message = read_psi_message(bytes(data))
        kept = PsiMessage(message.head, use(message))
        store.add_taken(number, kept)
        self._faults.reach("taken")
        self._session.acknowledge(incoming, patience_s=self._patience_s)
        return kept

    def _incoming(self) -> Incoming:
        try:
            return self._session.receive(self._stage, self._partner.name, step=self._step, patience_s=self._patience_s)
        except RemoteError as error:
            if error.reason != EXPIRED:
                raise
            # Of an alignment no message can be sent again as a new one, as the coordinator proposes.
            raise RemoteError(
                error.message,
                hint="Align in another stage or session; `coterie sessions make --message-ttl` lets them wait longer.",
                code=EXPIRED,
            ) from error

    @property
    def _who(self) -> str:
        return f"{self._partner.party} (role {self._partner.name})"

    def _named(self, error: Refusal) -> Refusal:
        """The same error with the partner's name and the stage."""
        message = f"Aligning with {self._who} in stage {self._stage}: {error.message}"
        return type(error)(message, hint=error.hint, code=error.reason)

    def _other_call(self) -> Conflict:
        return Conflict(
            f"An earlier program has begun another alignment in stage {self._stage} of session "
            f"{self._session.membership.session}: of other ids, by other rules, or with another result.",
            hint="Make the same call as before, on the same rows in the same order; or use another stage.",
            code="session_step",
        )

    def _aligned(self, outcome: PsiOutcome, progress: AlignmentProgress) -> Aligned:
        if outcome.is_refused:
            raise InputError(
                f"Too few ids are common with {self._who} in stage {self._stage}: fewer than the minimum of this party "
                f"({progress.hello.minimum}) or the partner's. Nobody was told which, nor how many.",
                hint="Are the columns and rules right at both parties? A smaller intersection would point at single "
                "persons; another minimum needs another stage.",
                code="intersection_small",
            )
        return Aligned(outcome.count, outcome.rows)


class _Host:
    """Carries messages for one attempt."""

    def __init__(self, alignment: _Alignment, store: AlignmentStore) -> None:
        self._alignment, self._store = alignment, store

    def send(self, message: PsiMessage) -> None:
        """The next message of this party."""
        self._alignment.send(message)

    def receive(self, use: Callable[[PsiMessage], bytes]) -> PsiMessage:
        """The next message of the partner."""
        return self._alignment.receive(self._store, use)


def _told(hello: PsiHello, partner: str, step: str) -> list[Disclosure]:
    """By an alignment, to and by a party: of rows of which it does not know how many the partner has.

    hello: the party's first words.
    """
    result: DisclosureKind = "memberships" if hello.terms.result == "rows" else "intersection_sizes"
    found: list[Disclosure] = []
    for sender, recipient in ((hello.role, partner), (partner, hello.role)):
        kinds: list[DisclosureKind] = ["row_counts", "blinded_ids"]
        if hello.terms.told in ("", recipient):
            kinds.append(result)
        found += [Disclosure(step=step, sender=sender, recipient=recipient, kind=kind, numbers=1) for kind in kinds]
    return found
