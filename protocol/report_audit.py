"""Reports of one session held against pins and against one another: what one says that it sent, the other must have
got.

Pure: reports in, findings out. A **fault** is a difference, or a signature that does not hold. What is **open** could
not be compared: a report is missing, a key is not pinned, a message is on its way.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, TypeAlias

from coterie.errors import Unauthenticated
from coterie.protocol.disclosures import Disclosure
from coterie.protocol.message_tree import UNOPENED, differences
from coterie.protocol.session import fingerprint
from coterie.protocol.session_report import ReportedStep, SessionReport

FindingRule: TypeAlias = Literal["signature", "key", "session", "partner", "messages", "steps", "missing"]
ReportVerdict: TypeAlias = Literal["agree", "differ", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class ReportFinding:
    """A difference, or something that could not be compared.

    rule: what was held against what.
    text: in words.
    stage, sender, recipient: where, as far as it has a place.
    first, last: numbers of messages, as far as it is about some.
    """

    rule: FindingRule
    text: str
    stage: str | None = None
    sender: str | None = None
    recipient: str | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class ReportAudit:
    """What came of it.

    faults: where reports differ, or a signature does not hold.
    open: what could not be compared.
    """

    faults: tuple[ReportFinding, ...]
    open: tuple[ReportFinding, ...]

    @property
    def verdict(self) -> ReportVerdict:
        """Whether the reports agree; `cannot tell` where nothing differs and something is open."""
        return "differ" if self.faults else "cannot tell" if self.open else "agree"


@dataclass(frozen=True)
class _Finding:
    """A finding, and whether it is a fault."""

    found: ReportFinding
    is_fault: bool = True


def audit_reports(reports: Sequence[SessionReport], pins: Mapping[str, str]) -> ReportAudit:
    """Hold reports of one session, one a role, against pins and against one another.

    pins: fingerprints by the name of the party.
    """
    found = [finding for report in reports for finding in _about_one(report, pins)]
    trusted = [report for report in reports if _signature_fault(report) is None]
    found += _about_all(trusted, {report.role for report in reports})
    for one, other in combinations(trusted, 2):
        if one.terms.digest == other.terms.digest and one.role != other.role:
            for rule in _PAIR_RULES:
                found += rule(one, other)
    return ReportAudit(
        tuple(each.found for each in found if each.is_fault), tuple(each.found for each in found if not each.is_fault)
    )


def _about_one(report: SessionReport, pins: Mapping[str, str]) -> Iterator[_Finding]:
    fault = _signature_fault(report)
    if fault is not None:
        text = f"The report of {_named(report)} was changed, or somebody else signed it: {fault}"
        yield _Finding(ReportFinding(rule="signature", text=text, sender=report.role))
    pinned, shown = pins.get(report.party), fingerprint(report.identity)
    if pinned is None:
        text = f"The key of {_named(report)} is not pinned here; its report names {shown}."
        yield _Finding(ReportFinding(rule="key", text=text, sender=report.role), is_fault=False)
    elif pinned != shown:
        text = f"The report of {_named(report)} is signed with {shown}, and {pinned} is pinned."
        yield _Finding(ReportFinding(rule="key", text=text, sender=report.role))


def _signature_fault(report: SessionReport) -> str | None:
    try:
        report.verify()
    except Unauthenticated as error:
        return error.message
    return None


def _about_all(reports: Sequence[SessionReport], present: Set[str]) -> Iterator[_Finding]:
    """Whether reports are of one session, and which are missing.

    present: the roles of which there is a report at all.
    """
    if not reports:
        return
    first, *others = reports
    for other in others:
        if other.terms.session != first.terms.session:
            what = f"are of two sessions, {first.terms.session} and {other.terms.session}"
        elif other.terms.digest != first.terms.digest:
            what = f"state two kinds of terms of session {first.terms.session}"
        elif other.role == first.role:
            what = "are both of one role"
        else:
            continue
        text = f"The reports of {_named(first)} and {_named(other)} {what}."
        yield _Finding(ReportFinding(rule="session", text=text))
    for role in first.terms.roles:
        if role.name not in present:
            text = f"There is no report of {role.party} (role {role.name}) to compare with."
            yield _Finding(ReportFinding(rule="missing", text=text, sender=role.name), is_fault=False)


def _partner_keys(one: SessionReport, other: SessionReport) -> Iterator[_Finding]:
    for mine, partner in ((one, other), (other, one)):
        met = next((key.identity for key in mine.partners if key.role == partner.role), None)
        if met is not None and met != partner.identity:
            text = (
                f"{_named(mine)} spoke with the key {fingerprint(met)} in the role {partner.role}, and the report of "
                f"{_named(partner)} is signed with {fingerprint(partner.identity)}."
            )
            yield _Finding(ReportFinding(rule="partner", text=text, sender=mine.role, recipient=partner.role))


def _messages(one: SessionReport, other: SessionReport) -> Iterator[_Finding]:
    for stage in one.terms.stages:
        for sender, recipient in ((one, other), (other, one)):
            yield from _lane(sender, recipient, stage)


def _lane(sender: SessionReport, recipient: SessionReport, stage: str) -> Iterator[_Finding]:
    """What the sender says of a stage's messages, and what the recipient says."""
    sent, got = (each.lane(stage, sender.role, recipient.role) for each in (sender, recipient))
    where = f"from {_named(sender)} to {_named(recipient)} in stage {stage}"

    def finding(text: str, first: int, last: int, *, is_fault: bool = True) -> _Finding:
        found = ReportFinding(
            rule="messages",
            text=text,
            stage=stage,
            sender=sender.role,
            recipient=recipient.role,
            first=first,
            last=last,
        )
        return _Finding(found, is_fault)

    for first, last in differences(sent.tree, got.tree):
        one = f"Message {first}" if first == last else f"One of the messages {first} to {last}"
        is_unopened = got.height == 0 and got.nodes[first] == UNOPENED
        what = "was acknowledged and never opened" if is_unopened else "has other bytes in each report"
        yield finding(f"{one} {where} {what}.", first, last)
    if got.messages > sent.messages:
        first, last = sent.messages, got.messages - 1
        text = f"{_numbers(first, last)} {where} came, and the sender's report does not have it."
        yield finding(text, first, last, is_fault=sender.is_final)
    confirmed = sent.messages - sent.unconfirmed
    if got.messages < confirmed:
        first, last = got.messages, confirmed - 1
        text = f"{_numbers(first, last)} {where} was sent, and the recipient's report does not have it."
        yield finding(text, first, last, is_fault=recipient.is_final)


def _steps(one: SessionReport, other: SessionReport) -> Iterator[_Finding]:
    mine, theirs = _steps_of(one), _steps_of(other)
    for place in [*mine, *(place for place in theirs if place not in mine)]:
        step, counterpart = mine.get(place), theirs.get(place)
        if step is not None and counterpart is not None:
            yield from _told(one, other, step, counterpart)
    for stage in one.terms.stages:
        for sender, recipient in ((one.role, other.role), (other.role, one.role)):
            if one.lane(stage, sender, recipient).messages == other.lane(stage, sender, recipient).messages:
                yield from _traffic(one, other, stage, sender, recipient)


def _steps_of(report: SessionReport) -> Mapping[tuple[str, str], ReportedStep]:
    return {(step.stage, step.step): step for step in report.steps}


def _told(
    one: SessionReport, other: SessionReport, step: ReportedStep, counterpart: ReportedStep
) -> Iterator[_Finding]:
    """What each says that a step tells between the two."""
    pair = {one.role, other.role}
    for report, told, partner, said in ((one, step, other, counterpart), (other, counterpart, one, step)):
        others: dict[bytes, list[Disclosure]] = defaultdict(list)
        for another in said.disclosures:
            others[another.subject].append(another)
        for each in told.disclosures:
            between = {each.sender, each.recipient} == pair
            # That bytes passed follows from messages; where they have not come, that is said of them.
            is_on_its_way = each.kind == "opaque" and not said.has_traffic(each.sender, each.recipient)
            if between and not is_on_its_way and not any(map(each.agrees_with, others[each.subject])):
                text = (
                    f"In step {told.step} of stage {told.stage} {_named(report)} says that {describe(each)}; "
                    f"{_named(partner)} does not say so."
                )
                found = ReportFinding(
                    rule="steps", text=text, stage=told.stage, sender=each.sender, recipient=each.recipient
                )
                # Of a step that is not over, one may have said more than the other.
                yield _Finding(found, is_fault=said.is_done)


def _traffic(one: SessionReport, other: SessionReport, stage: str, sender: str, recipient: str) -> Iterator[_Finding]:
    """In which steps each counts the messages of a lane, of which both have as many."""
    mine, theirs = _counted(one, stage, sender, recipient), _counted(other, stage, sender, recipient)
    for step in [*mine, *(step for step in theirs if step not in mine)]:
        if mine.get(step) != theirs.get(step):
            text = (
                f"Of step {step} in stage {stage} {_named(one)} counts {_amount(mine.get(step))} from {sender} to "
                f"{recipient}, and {_named(other)} {_amount(theirs.get(step))}."
            )
            yield _Finding(ReportFinding(rule="steps", text=text, stage=stage, sender=sender, recipient=recipient))


def _counted(report: SessionReport, stage: str, sender: str, recipient: str) -> Mapping[str, tuple[int, int]]:
    """Messages and bytes by step."""
    return {
        step.step: (each.messages, each.size)
        for step in report.steps
        for each in step.traffic
        if (step.stage, each.sender, each.recipient) == (stage, sender, recipient)
    }


def _amount(counted: tuple[int, int] | None) -> str:
    messages, size = counted or (0, 0)
    return f"{messages} messages of {size} bytes"


def describe(told: Disclosure) -> str:
    """What is told, in words."""
    numbers = f", {told.numbers} numbers a row" if told.numbers else ""
    rows = "" if told.rows is None else f", of {told.rows} rows"
    times = f", up to {told.times} times" if told.times > 1 else ""
    key = f" ({told.key})" if told.key else ""
    what = told.kind.replace("_", " ")
    return f"{told.sender} tells {told.recipient} {what}{key}{numbers}{rows}{times} (claim: {told.claim})"


def _numbers(first: int, last: int) -> str:
    return f"Message {first}" if first == last else f"Each of the messages {first} to {last}"


def _named(report: SessionReport) -> str:
    return f"{report.party} (role {report.role})"


_PAIR_RULES: Final[tuple[Callable[[SessionReport, SessionReport], Iterator[_Finding]], ...]] = (
    _partner_keys,
    _messages,
    _steps,
)
