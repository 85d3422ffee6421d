"""A party's report of a session, out of what it kept."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TypeAlias

from coterie.client_sdk.party.record import PartyRecord, PassedMessage
from coterie.client_sdk.party.store import PartyMembership, PartyStore
from coterie.protocol.disclosures import Disclosure
from coterie.protocol.message_tree import UNOPENED, MessageTree
from coterie.protocol.session import SessionView
from coterie.protocol.session_report import (
    FORMAT,
    MessageLane,
    PartnerKey,
    ReportedStep,
    SessionReport,
    StepTraffic,
)

_Place: TypeAlias = tuple[str, str, str]
"""Stage, sender and recipient."""
_Passed: TypeAlias = Mapping[_Place, list[PassedMessage]]


def make_report(store: PartyStore, membership: PartyMembership, view: SessionView | None) -> SessionReport:
    """The signed report of a session.

    view: the session as the coordinator tells it; None where it could not be asked, or this party has ended it.
    """
    role, session = membership.role, membership.session
    sent = _by_place(store.record.sent(session), lambda partner: (role, partner))
    opened = _by_place(store.record.opened(session), lambda partner: (partner, role))
    worked_in = {(stage, sender, role): count for (stage, sender), count in store.record.acknowledged(session).items()}
    is_over = membership.ended is not None or (view is not None and view.state == "ended")
    party = next(each.party for each in membership.terms.roles if each.name == role)
    return SessionReport(
        format=FORMAT,
        name=membership.name,
        terms=membership.terms,
        role=role,
        party=party,
        identity=store.key.public,
        state="ended" if is_over else "unknown" if view is None else "open",
        reason=membership.ended or (None if view is None else view.reason),
        partners=tuple(_partner_keys(store, membership)),
        steps=tuple(_steps(store.record, session, {**sent, **opened})),
        lanes=(
            *(_sent_lane(place, messages) for place, messages in sent.items()),
            *(
                _read_lane(place, opened.get(place, []), worked_in.get(place, 0))
                for place in sorted({*opened, *worked_in})
            ),
        ),
    ).signed(store.key)


def _by_place(messages: Iterable[PassedMessage], ends: Callable[[str], tuple[str, str]]) -> _Passed:
    """Messages of each stage and direction, in their order."""
    groups = groupby(messages, lambda each: (each.stage, each.partner))
    return {(stage, *ends(partner)): [*group] for (stage, partner), group in groups}


def _partner_keys(store: PartyStore, membership: PartyMembership) -> Iterator[PartnerKey]:
    for role in membership.terms.roles:
        if role.name != membership.role:
            keys = store.keys(membership.session, role.name)
            other = None if keys is None else keys.other
            yield PartnerKey(role=role.name, party=role.party, identity=None if other is None else other.identity)


def _sent_lane(place: _Place, messages: list[PassedMessage]) -> MessageLane:
    unconfirmed = sum(not message.is_confirmed for message in messages)
    return _lane(place, messages, MessageTree.over([message.sealed for message in messages]), unconfirmed=unconfirmed)


def _read_lane(place: _Place, messages: list[PassedMessage], worked_in: int) -> MessageLane:
    known = {message.sequence: message.sealed for message in messages}
    count = max(worked_in, max(known, default=-1) + 1)
    digests = [known.get(number, UNOPENED) for number in range(count)]
    return _lane(place, messages, MessageTree.over(digests), unopened=count - len(known))


def _lane(
    place: _Place, messages: list[PassedMessage], tree: MessageTree, *, unconfirmed: int = 0, unopened: int = 0
) -> MessageLane:
    stage, sender, recipient = place
    return MessageLane(
        stage=stage,
        sender=sender,
        recipient=recipient,
        messages=tree.messages,
        size=sum(message.size for message in messages),
        unconfirmed=unconfirmed,
        unopened=unopened,
        height=tree.height,
        nodes=tree.nodes,
    )


def _steps(record: PartyRecord, session: str, passed: _Passed) -> Iterator[ReportedStep]:
    """Every step that told something or had messages, those that told first."""
    done = record.steps(session)
    told: dict[tuple[str, str], list[Disclosure]] = defaultdict(list)
    for stage, disclosure in record.disclosures(session):
        told[stage, disclosure.step].append(disclosure)
    counts: dict[tuple[str, str], dict[tuple[str, str], tuple[int, int]]] = defaultdict(dict)
    for (stage, sender, recipient), messages in sorted(passed.items()):
        for message in messages:
            of_step = counts[stage, message.step]
            number, size = of_step.get((sender, recipient), (0, 0))
            of_step[sender, recipient] = (number + 1, size + message.size)
    for stage, step in {**done, **counts}:
        traffic = [
            StepTraffic(sender=sender, recipient=recipient, messages=number, size=size)
            for (sender, recipient), (number, size) in counts[stage, step].items()
        ]
        yield ReportedStep(
            stage=stage,
            step=step,
            is_done=done.get((stage, step), True),
            disclosures=(*_best_known(told[stage, step]), *_opaque(step, told[stage, step], traffic)),
            traffic=tuple(traffic),
        )


def _best_known(told: list[Disclosure]) -> Iterator[Disclosure]:
    """What was told, without what was said again when more was known."""
    of_one_thing: dict[bytes, list[Disclosure]] = defaultdict(list)
    for each in told:
        of_one_thing[each.subject].append(each)
    for alike in of_one_thing.values():
        yield from (each for each in alike if not any(other.says_more_than(each) for other in alike))


def _opaque(step: str, told: list[Disclosure], traffic: list[StepTraffic]) -> Iterator[Disclosure]:
    """Of each direction of which the step says nothing, that bytes passed."""
    said = {(each.sender, each.recipient) for each in told}
    for each in traffic:
        if (each.sender, each.recipient) not in said:
            yield Disclosure(step=step, sender=each.sender, recipient=each.recipient, kind="opaque", claim="none")
