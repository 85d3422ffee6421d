"""Reports of a session as messages: trees of digests find what differs; rubbish and lies are refused; two reports agree
or the difference is named.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.disclosures import CLAIMS, KINDS, Disclosure, DisclosureClaim, DisclosureKind, shown_key
from coterie.protocol.learned import learned
from coterie.protocol.message_tree import MOST_NODES, UNOPENED, MessageTree, differences
from coterie.protocol.report_audit import ReportAudit, audit_reports
from coterie.protocol.session import PartyRole, SessionTerms, fingerprint
from coterie.protocol.session_report import (
    FORMAT,
    MessageLane,
    PartnerKey,
    ReportedStep,
    SessionReport,
    StepTraffic,
    read_report,
)
from coterie.protocol.signing import SigningKey

KEYS = {"owner": SigningKey.from_seed(b"o" * 32), "feature": SigningKey.from_seed(b"f" * 32)}
PARTIES = {"owner": "Clinic", "feature": "Registry"}
PINS = {PARTIES[role]: fingerprint(key.public) for role, key in KEYS.items()}
TERMS = SessionTerms(
    session=f"ses_{'0' * 32}",
    roles=tuple(PartyRole(name=role, party=party) for role, party in PARTIES.items()),
    stages=("rows",),
    message_limit=1000,
)
TOLD = Disclosure(step="align 0", sender="owner", recipient="feature", kind="memberships", rows=7)


def digest(number: int) -> str:
    return sha256_hex(str(number).encode())


def lane(digests: Sequence[str], **changes: Any) -> MessageLane:
    """What the owner sent to the feature owner, ten bytes each."""
    tree = MessageTree.over(digests)
    opened = sum(each != UNOPENED for each in digests)
    made = {"messages": len(digests), "size": 10 * opened, "unopened": len(digests) - opened}
    made |= {"height": tree.height, "nodes": tree.nodes}
    fields: dict[str, Any] = {"stage": "rows", "sender": "owner", "recipient": "feature", **made, **changes}
    return MessageLane(**fields)


def report(role: str, digests: Sequence[str], told: Sequence[Disclosure] = (TOLD,), **changes: Any) -> SessionReport:
    """A signed report in which the messages all belong to the step that is told.

    changes: of the report, of its lane where they begin with ``lane_``, of its step where with ``step_``.
    """
    of_lane = {name.removeprefix("lane_"): value for name, value in changes.items() if name.startswith("lane_")}
    of_step = {name.removeprefix("step_"): value for name, value in changes.items() if name.startswith("step_")}
    rest = {name: value for name, value in changes.items() if not name.startswith(("lane_", "step_"))}
    other = "feature" if role == "owner" else "owner"
    found = lane(digests, **of_lane)
    traffic = StepTraffic(
        sender="owner", recipient="feature", messages=found.messages - found.unopened, size=found.size
    )
    step: dict[str, Any] = {
        "stage": "rows",
        "step": "align 0",
        "is_done": True,
        "disclosures": tuple(told),
        "traffic": (traffic,),
    }
    fields: dict[str, Any] = {
        "format": FORMAT,
        "name": "joint",
        "terms": TERMS,
        "role": role,
        "party": PARTIES[role],
        "identity": KEYS[role].public,
        "state": "ended",
        "partners": (PartnerKey(role=other, party=PARTIES[other], identity=KEYS[other].public),),
        "steps": (ReportedStep(**{**step, **of_step}),),
        "lanes": (found,),
    }
    return SessionReport(**{**fields, **rest}).signed(KEYS[role])


def audited(one: SessionReport, other: SessionReport) -> ReportAudit:
    """Both in both orders: the order says nothing."""
    found, again = audit_reports((one, other), PINS), audit_reports((other, one), PINS)
    assert (found.verdict, len(found.faults), len(found.open)) == (again.verdict, len(again.faults), len(again.open))
    return found


@given(
    st.lists(st.integers(0, 10**6), max_size=60),
    st.lists(st.integers(0, 10**6), max_size=60),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_trees_of_any_heights_find_what_differs_and_nothing_else(
    one: list[int], other: list[int], up: int, further: int
) -> None:
    mine, theirs = [digest(each) for each in one], [digest(each) for each in other]
    raised = [MessageTree.over(mine), MessageTree.over(theirs)]
    for place, times in enumerate((up, further)):
        for _ in range(times):
            raised[place] = raised[place].raised()
    ranges = [*differences(*raised)]
    wrong = {place for place, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]}
    told = {place for first, last in ranges for place in range(first, last + 1)}
    span = 1 << max(up, further)
    # The messages that the last nodes share with what only one has are not compared.
    compared = len(mine) if len(mine) == len(theirs) else min(len(mine), len(theirs)) // span * span
    assert {place // span for place in wrong if place < compared} == {first // span for first, _ in ranges}
    assert told <= set(range(min(len(mine), len(theirs))))


def test_a_tree_of_many_messages_is_small_and_finds_one_that_differs() -> None:
    many = [digest(number) for number in range(MOST_NODES + 1)]
    assert MessageTree.over(many[:-1]).height == 0
    tree = MessageTree.over(many)
    assert tree.height == 1 and len(tree.nodes) == MOST_NODES // 2 + 1 and tree.is_whole
    changed = [*many[:700], digest(-1), *many[701:]]
    assert [*differences(tree, MessageTree.over(changed))] == [(700, 701)]
    assert [*differences(tree, MessageTree.over(changed[:900]))] == [(700, 701)]
    assert not [*differences(tree, MessageTree.over(many[:900]))]


def test_every_kind_and_claim_says_what_it_means() -> None:
    from typing import get_args

    assert set(get_args(DisclosureKind)) == set(KINDS) and set(get_args(DisclosureClaim)) == set(CLAIMS)


def test_two_reports_that_say_the_same_agree_and_a_file_brings_the_report_back() -> None:
    digests = [digest(number) for number in range(5)]
    one, other = report("owner", digests), report("feature", digests)
    assert audited(one, other) == ReportAudit((), ())
    assert audited(one, other).verdict == "agree"
    assert read_report(one.to_bytes(), "a file") == one
    read_report(one.to_bytes(), "a file").verify()
    (row,) = learned((one, other))
    assert (row.disclosure, row.messages, row.size, row.is_done) == (TOLD, 5, 50, True)


FIVE = [digest(number) for number in range(5)]
OTHER = [*FIVE[:3], digest(99), FIVE[4]]
DIFFERENCES: dict[str, tuple[SessionReport, SessionReport, str, str]] = {
    "another message": (
        report("owner", FIVE),
        report("feature", OTHER),
        "messages",
        "Message 3 from Clinic (role owner) to Registry (role feature) in stage rows has other bytes in each report.",
    ),
    "withheld": (
        report("owner", FIVE),
        report("feature", FIVE[:4]),
        "messages",
        "Message 4 from Clinic (role owner) to Registry (role feature) in stage rows was sent, and the recipient's "
        "report does not have it.",
    ),
    "never sent": (
        report("owner", FIVE[:3]),
        report("feature", FIVE),
        "messages",
        "Each of the messages 3 to 4 from Clinic (role owner) to Registry (role feature) in stage rows came, and the "
        "sender's report does not have it.",
    ),
    "never opened": (
        report("owner", FIVE),
        report("feature", [*FIVE[:2], UNOPENED, *FIVE[3:]]),
        "messages",
        "Message 2 from Clinic (role owner) to Registry (role feature) in stage rows was acknowledged and never "
        "opened.",
    ),
    "another number of rows": (
        report("owner", FIVE),
        report("feature", FIVE, (TOLD.model_copy(update={"rows": 8}),)),
        "steps",
        "that owner tells feature memberships, of 7 rows",
    ),
    "told by one alone": (
        report("owner", FIVE, (TOLD, TOLD.model_copy(update={"kind": "labels"}))),
        report("feature", FIVE),
        "steps",
        "that owner tells feature labels, of 7 rows",
    ),
    "another claim": (
        report("owner", FIVE),
        report("feature", FIVE, (TOLD.model_copy(update={"claim": "malicious"}),)),
        "steps",
        "(claim: malicious)",
    ),
    "another step": (
        report("owner", FIVE),
        report("feature", FIVE, (TOLD.model_copy(update={"step": "align 1"}),), step_step="align 1"),
        "steps",
        "Of step align 0 in stage rows Clinic (role owner) counts 5 messages of 50 bytes from owner to feature, and "
        "Registry (role feature) 0 messages of 0 bytes.",
    ),
    "another size": (
        report("owner", FIVE),
        report("feature", FIVE, lane_size=51),
        "steps",
        "5 messages of 51 bytes",
    ),
    "another key": (
        report(
            "owner",
            FIVE,
            partners=(PartnerKey(role="feature", party="Registry", identity=SigningKey.from_seed(b"x" * 32).public),),
        ),
        report("feature", FIVE),
        "partner",
        "spoke with the key",
    ),
    "other terms": (
        report("owner", FIVE),
        report("feature", FIVE, terms=TERMS.model_copy(update={"message_limit": 999})),
        "session",
        "two kinds of terms",
    ),
    "another session": (
        report("owner", FIVE),
        report("feature", FIVE, terms=TERMS.model_copy(update={"session": f"ses_{'1' * 32}"})),
        "session",
        "are of two sessions",
    ),
    "one role twice": (
        report("owner", FIVE),
        report("owner", FIVE[:4]),
        "session",
        "are both of one role",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_a_difference_is_named(case: str) -> None:
    one, other, rule, says = DIFFERENCES[case]
    found = audited(one, other)
    assert found.verdict == "differ"
    assert any(fault.rule == rule and says in fault.text for fault in found.faults), found.faults


def test_what_is_on_its_way_and_what_goes_on_is_open_and_no_fault() -> None:
    going_on: dict[str, Any] = {"state": "open"}
    pairs = [
        (report("owner", FIVE), report("feature", FIVE[:4], **going_on)),
        (report("owner", FIVE[:4], **going_on), report("feature", FIVE)),
        (
            report("owner", FIVE, (TOLD, TOLD.model_copy(update={"kind": "labels"}))),
            report("feature", FIVE, step_is_done=False),
        ),
    ]
    for one, other in pairs:
        assert audited(one, other).verdict == "cannot tell"
    # What the coordinator has not confirmed may have come, or not.
    waiting = report("owner", FIVE, lane_unconfirmed=1)
    assert audited(waiting, report("feature", FIVE[:4])).faults == ()
    assert audited(waiting, report("feature", FIVE)).faults == ()
    assert audited(waiting, report("feature", FIVE[:3])).verdict == "differ"
    # What one does not know, the other may say.
    unknown = report("owner", FIVE, (TOLD.model_copy(update={"rows": None}),))
    assert audited(unknown, report("feature", FIVE)).verdict == "agree"
    (row,) = learned((unknown, report("feature", FIVE)))
    assert row.disclosure.rows == 7


def test_a_report_alone_and_a_key_that_nobody_pinned_prove_nothing() -> None:
    one, other = report("owner", FIVE), report("feature", FIVE)
    alone = audit_reports((one,), PINS)
    assert alone.verdict == "cannot tell" and alone.open[0].rule == "missing" and "Registry" in alone.open[0].text
    unpinned = audit_reports((one, other), {"Clinic": PINS["Clinic"]})
    assert unpinned.verdict == "cannot tell" and fingerprint(KEYS["feature"].public) in unpinned.open[0].text
    swapped = audit_reports((one, other), {**PINS, "Clinic": PINS["Registry"]})
    assert swapped.verdict == "differ" and swapped.faults[0].rule == "key"


def changed(one: SessionReport, change: Callable[[dict[str, Any]], None]) -> bytes:
    value = json.loads(one.to_bytes())
    change(value)
    return json.dumps(value).encode()


TAMPERING: dict[str, Callable[[dict[str, Any]], None]] = {
    "rows": lambda value: value["steps"][0]["disclosures"][0].update(rows=6),
    "kind": lambda value: value["steps"][0]["disclosures"][0].update(kind="row_counts"),
    "digest": lambda value: value["lanes"][0]["nodes"].__setitem__(0, digest(99)),
    "state": lambda value: value.update(state="open"),
    "a step left out": lambda value: value.update(steps=[], lanes=[]),
    "a field that is not known": lambda value: value.update(more=1),
    "the signature": lambda value: value.update(signature=""),
    "another identity": lambda value: value.update(identity=KEYS["feature"].public),
}


@pytest.mark.parametrize("case", TAMPERING)
def test_a_report_that_was_changed_does_not_pass(case: str) -> None:
    told = read_report(changed(report("owner", FIVE), TAMPERING[case]), "a file")
    found = audited(told, report("feature", FIVE))
    assert found.verdict == "differ" and found.faults[0].rule in ("signature", "key")
    assert "Clinic" in found.faults[0].text


RUBBISH: dict[str, Callable[[dict[str, Any]], None]] = {
    "another format": lambda value: value.update(format="coterie-session-report-2"),
    "no role of the terms": lambda value: value.update(role="auditor"),
    "another party": lambda value: value.update(party="Registry"),
    "no partners": lambda value: value.update(partners=[]),
    "a lane twice": lambda value: value["lanes"].append(value["lanes"][0]),
    "a step twice": lambda value: value["steps"].append(value["steps"][0]),
    "a stage that is not there": lambda value: value["steps"][0].update(stage="sums"),
    "somebody else's messages": lambda value: value["lanes"][0].update(recipient="auditor"),
    "a disclosure of another step": lambda value: value["steps"][0]["disclosures"][0].update(step="align 1"),
    "an unknown kind": lambda value: value["steps"][0]["disclosures"][0].update(kind="secrets"),
    "a key with an escape": lambda value: value["steps"][0]["disclosures"][0].update(key="\x1b[2J"),
    "fewer digests": lambda value: value["lanes"][0]["nodes"].pop(),
    "a height for nothing": lambda value: value["lanes"][0].update(height=1, nodes=value["lanes"][0]["nodes"][:3]),
    "a height beyond all": lambda value: value["lanes"][0].update(height=1 << 40),
    "other counts": lambda value: value["steps"][0]["traffic"][0].update(messages=4),
    "counts of nothing": lambda value: value.update(lanes=[]),
    "a fraction": lambda value: value["lanes"][0].update(messages=5.5),
    "a text": lambda value: value["lanes"][0].update(messages="5"),
}


@pytest.mark.parametrize("case", RUBBISH)
def test_what_does_not_fit_together_is_no_report(case: str) -> None:
    with pytest.raises(CoterieError) as refused:
        read_report(changed(report("owner", FIVE), RUBBISH[case]), "odd.json")
    assert refused.value.reason == "report_invalid" and "odd.json" in refused.value.message


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_rubbish_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(CoterieError) as refused:
        read_report(data, "rubbish")
    assert refused.value.reason == "report_invalid"


def test_a_key_of_a_plan_cannot_move_the_cursor() -> None:
    assert shown_key("a\x1b[2J\u202eb" + "x" * 300).startswith("a?[2J?bxxx") and len(shown_key("x" * 300)) == 200
