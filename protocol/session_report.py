"""What a party signs when a session is over: what it told and was told, step by step, and digests of every message.

A report is made of what the party kept in its folder, by nothing else: the same folder gives the same report. It holds
digests of sealed bytes, which say nothing of what was in them, and no number of any row.
"""

from collections import Counter
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from coterie.errors import CoterieError, InputError
from coterie.protocol.canonical import canonical_json
from coterie.protocol.disclosures import Disclosure, StepName
from coterie.protocol.message_tree import MessageTree
from coterie.protocol.session import SessionTerms
from coterie.protocol.signing import Domain, SigningKey, verify
from coterie.protocol.wire import (
    DisplayName,
    Identifier,
    PublicKey,
    SessionWord,
    Sha256,
    Signature,
    Signed,
    Whole,
    read_message,
)

FORMAT: Final = "coterie-session-report-1"
MOST_BYTES: Final = 1 << 27
_HIGHEST: Final = 53


class PartnerKey(Signed):
    """The key with which a partner signed its keys in the session.

    identity: what this party has pinned; None where nothing passed between the two.
    """

    role: SessionWord
    party: DisplayName
    identity: PublicKey | None


class MessageLane(Signed):
    """The messages of one stage from one role to another, one of them the role that reports.

    messages: how many: of those that it sent, also what is sealed and waits; of those that it got, up to the last that
        it opened or acknowledged.
    size: their sealed bytes.
    unconfirmed: of those that it sent, how many at the end the coordinator has not confirmed.
    unopened: of those that it got, how many it acknowledged without having opened them.
    height, nodes: a level of the tree over the SHA-256 of their sealed bytes (`coterie.protocol.message_tree`).
    """

    stage: SessionWord
    sender: SessionWord
    recipient: SessionWord
    messages: Whole
    size: Whole
    unconfirmed: Whole = 0
    unopened: Whole = 0
    height: Annotated[int, Field(strict=True, ge=0, le=_HIGHEST)]
    nodes: tuple[Sha256, ...]

    @property
    def tree(self) -> MessageTree:
        """Its digests."""
        return MessageTree(self.messages, self.height, self.nodes)


class StepTraffic(Signed):
    """How many messages of a step passed from one role to another, and their sealed bytes."""

    sender: SessionWord
    recipient: SessionWord
    messages: Whole
    size: Whole


class ReportedStep(Signed):
    """One step.

    step: its name; `coterie.protocol.disclosures.MESSAGES_STEP` for messages that no step has taken for its own.
    is_done: whether it came to its end here; otherwise it told at most what stands here.
    disclosures: what is told in it; `opaque` where bytes passed of which nothing was said.
    """

    stage: SessionWord
    step: StepName
    is_done: bool
    disclosures: tuple[Disclosure, ...]
    traffic: tuple[StepTraffic, ...]

    def has_traffic(self, sender: str, recipient: str) -> bool:
        """Whether messages of the step passed from one role to another."""
        return any((each.sender, each.recipient) == (sender, recipient) for each in self.traffic)


class SessionReport(Signed):
    """What one party saw in a session, by its own word and under its signature.

    name: the session's, for people.
    terms: what all parties agreed on.
    identity: the party's key, which whoever reads the report must have pinned.
    state: whether the session was over when the report was made, by the coordinator's word; `unknown` where it could
        not be asked.
    reason: why it ended.
    """

    format: Literal["coterie-session-report-1"]
    name: DisplayName
    terms: SessionTerms
    role: SessionWord
    party: DisplayName
    identity: PublicKey
    state: Literal["open", "ended", "unknown"]
    reason: Identifier | None = None
    partners: tuple[PartnerKey, ...]
    steps: tuple[ReportedStep, ...]
    lanes: tuple[MessageLane, ...]
    signature: Signature | Literal[""] = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        others = {role.name: role.party for role in self.terms.roles}
        if others.pop(self.role, None) != self.party:
            raise ValueError("the terms give this role to another party, or do not know it")
        if {key.role: key.party for key in self.partners} != others or len(self.partners) != len(others):
            raise ValueError("the partners are not those of the terms")
        lanes = [(lane.stage, lane.sender, lane.recipient) for lane in self.lanes]
        if len(set(lanes)) != len(lanes):
            raise ValueError("a stage is there twice for one direction")
        steps = [(step.stage, step.step) for step in self.steps]
        if len(set(steps)) != len(steps):
            raise ValueError("a step is there twice")
        if {stage for stage, *_ in (*lanes, *steps)} - {*self.terms.stages}:
            raise ValueError("it tells of a stage that the terms do not have")
        said = [pair for step in self.steps for pair in (*step.disclosures, *step.traffic)]
        for pair in (*self.lanes, *said):
            if self.role not in (pair.sender, pair.recipient) or not {pair.sender, pair.recipient} & {*others}:
                raise ValueError("it tells of messages that are not this role's")
        if any(told.step != step.step for step in self.steps for told in step.disclosures):
            raise ValueError("a disclosure stands in another step")
        passed: Counter[tuple[str, str, str]] = Counter()
        sizes: Counter[tuple[str, str, str]] = Counter()
        for step in self.steps:
            for each in step.traffic:
                passed[step.stage, each.sender, each.recipient] += each.messages
                sizes[step.stage, each.sender, each.recipient] += each.size
        for place, lane in zip(lanes, self.lanes, strict=True):
            if not lane.tree.is_whole or lane.unconfirmed + lane.unopened > lane.messages:
                raise ValueError("the digests are not as many as the messages ask for")
            if (passed.pop(place, 0), sizes.pop(place, 0)) != (lane.messages - lane.unopened, lane.size):
                raise ValueError("the steps count other messages than there are")
        if passed:
            raise ValueError("the steps count messages that are not there")
        return self

    @property
    def is_final(self) -> bool:
        """Whether the session was over, so that nothing can have been sent or read since."""
        return self.state == "ended"

    def lane(self, stage: str, sender: str, recipient: str) -> MessageLane:
        """The messages of a stage from one role to another; an empty lane where there are none."""
        place = (stage, sender, recipient)
        found = next((lane for lane in self.lanes if (lane.stage, lane.sender, lane.recipient) == place), None)
        return found or MessageLane(
            stage=stage, sender=sender, recipient=recipient, messages=0, size=0, height=0, nodes=()
        )

    def signed_bytes(self) -> bytes:
        """What the signature covers: the canonical JSON of every field but `signature` itself, also of those that this
        version does not know.
        """
        return canonical_json(self.model_dump(mode="json", exclude={"signature"}, exclude_unset=True))

    def signed(self, key: SigningKey) -> "SessionReport":
        """This report under the party's signature."""
        return self.model_copy(update={"signature": key.sign(Domain.SESSION_REPORT, self.signed_bytes())})

    def verify(self) -> None:
        """Raise errors.Unauthenticated (``signature_invalid``) unless `identity` signed it. Whether that is the
        party's key is for pins to say.
        """
        verify(self.identity, Domain.SESSION_REPORT, self.signed_bytes(), self.signature)

    def to_bytes(self) -> bytes:
        """Canonical JSON: the file of a report."""
        return canonical_json(self.model_dump(mode="json", exclude_unset=True))


def read_report(data: bytes, name: str) -> SessionReport:
    """A report from the bytes of a file; whether its signature holds is not looked at.

    name: of the file, for messages.
    Raises InputError (``report_invalid``).
    """
    try:
        return read_message(SessionReport, data, limit=MOST_BYTES)
    except CoterieError as error:
        raise InputError(
            f"{name} is not a report of a session: {error.message}",
            hint="Name files that `coterie party report --out` has written.",
            code="report_invalid",
        ) from error
