"""A ledger's chain names its first broken link, whatever was done to it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_kit import KEY, PEOPLE, chain, cost

from coterie import errors
from coterie.privacy.ledger.chain import Entry, Head, check, commitment, link
from coterie.privacy.ledger.events import (
    EACH,
    YEAR,
    Bound,
    LedgerEvent,
    Limit,
    Refund,
    RefundCause,
    Reserve,
    Spend,
)
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.conversion import to_json
from coterie.protocol.signing import SigningKey

STORY: tuple[tuple[int, LedgerEvent], ...] = (
    (1000, Limit(scope=EACH, bound=Bound(4.0, 1e-6))),
    (1000, Limit(scope=YEAR, bound=Bound(8.0, 1e-6))),
    (1500, Reserve(experiment="exp_a", round=1, cost=cost(1.5))),
    (1700, Spend(experiment="exp_a", round=1, noise=commitment(b"s" * 32))),
    (1700, Reserve(experiment="exp_a", round=2, cost=cost(1.5) + cost(0.5))),
    (1900, Refund(experiment="exp_a", round=2, cause=RefundCause.STOPPED)),
    (2000, Limit(scope=YEAR, bound=None)),
)


def test_a_chain_holds_and_ends_where_it_ends() -> None:
    entries = chain(STORY)
    verdict = check(entries, head=PEOPLE, public=KEY.public)
    assert verdict.broken is None
    assert verdict.head == Head(population="people", sequence=7, digest=entries[-1].digest)
    assert check((), head=PEOPLE).head == PEOPLE


def test_a_chain_may_be_checked_in_pieces() -> None:
    entries = chain(STORY)
    first = check(entries[:3], head=PEOPLE)
    rest = check(entries[3:], head=first.head, state=first.state, public=KEY.public)
    assert rest == check(entries, head=PEOPLE)


def test_entries_survive_json() -> None:
    for entry in chain(STORY):
        assert Entry.from_json(json.loads(canonical_json(to_json(entry)))) == entry


def test_a_digest_is_what_the_documentation_says() -> None:
    """SHA-256 over canonical JSON of everything but digest and signature: written out by hand here."""
    (entry,) = chain(STORY[2:3])
    content = (
        '{"at":1500,"event":{"cost":[{"epsilon":1.5}],"experiment":"exp_a","kind":"reserve","round":1},'
        f'"population":"people","previous":"{"0" * 64}","sequence":1}}'
    )
    assert entry.digest == sha256_hex(content.encode())


def _changed(place: int, **fields: object) -> Callable[[list[Entry]], list[Entry]]:
    def change(entries: list[Entry]) -> list[Entry]:
        return [*entries[:place], replace(entries[place], **fields), *entries[place + 1 :]]

    return change


def _forged(entries: list[Entry]) -> list[Entry]:
    """Written anew from the third entry on, in order, by another key."""
    other = SigningKey.from_seed(b"x" * 32)
    head = Head(population="people", sequence=2, digest=entries[1].digest)
    made = list(entries[:2])
    for entry in entries[2:]:
        made.append(link(head, entry.at, entry.event, other))
        head = Head(population="people", sequence=made[-1].sequence, digest=made[-1].digest)
    return made


BREAKS: dict[str, tuple[Callable[[list[Entry]], list[Entry]], int, str]] = {
    "cost": (_changed(2, event=Reserve(experiment="exp_a", round=1, cost=cost(0.1))), 3, "changed"),
    "time": (_changed(3, at=1600), 4, "changed"),
    "removed": (lambda entries: entries[:3] + entries[4:], 4, "missing or moved"),
    "swapped": (lambda entries: [entries[1], entries[0], *entries[2:]], 1, "missing or moved"),
    "population": (_changed(1, population="others"), 2, "of the population 'others'"),
    "digest": (_changed(1, digest="f" * 64), 2, "digest does not match"),
    "previous": (_changed(4, previous="f" * 64), 5, "does not follow"),
    "signature": (_changed(5, signature="A" * 86 + "=="), 6, "signature"),
    "another key": (_forged, 3, "signature"),
}


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_the_first_broken_link_is_named(name: str) -> None:
    damage, sequence, why = BREAKS[name]
    verdict = check(damage(chain(STORY)), head=PEOPLE, public=KEY.public)
    assert verdict.broken is not None
    assert (verdict.broken.sequence, why in verdict.broken.why) == (sequence, True), verdict.broken
    assert verdict.head.sequence == sequence - 1


IMPOSSIBLE: dict[str, tuple[tuple[tuple[int, LedgerEvent], ...], str]] = {
    "spend of nothing": (((1, Spend(experiment="e", round=1)),), "not reserved"),
    "spend twice": ((*STORY[2:4], (1800, Spend(experiment="exp_a", round=1))), "is spent"),
    "refund of what is spent": (
        (*STORY[2:4], (1800, Refund(experiment="exp_a", round=1, cause=RefundCause.ABANDONED))),
        "is spent",
    ),
    "reserve twice": ((STORY[2], (1600, Reserve(experiment="exp_a", round=1, cost=cost(1)))), "is reserved"),
    "reserve what was refunded": (
        (*STORY[4:6], (1950, Reserve(experiment="exp_a", round=2, cost=cost(1)))),
        "is refunded",
    ),
    "time goes back": ((STORY[2], (1400, Spend(experiment="exp_a", round=1))), "cannot follow one at 1500"),
}


@pytest.mark.parametrize("name", sorted(IMPOSSIBLE))
def test_a_well_signed_chain_of_impossible_events_is_broken_too(name: str) -> None:
    events, why = IMPOSSIBLE[name]
    verdict = check(chain(events), head=PEOPLE, public=KEY.public)
    assert verdict.broken is not None and verdict.broken.sequence == len(events)
    assert why in verdict.broken.why


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"kind": "gift"},
        {"kind": "reserve", "experiment": "e", "round": 1},
        {"kind": "limit", "scope": "365 days", "bound": {"epsilon": -1, "delta": 0.1}},
        {"kind": "refund", "experiment": "e", "round": 1, "cause": "mood"},
    ],
    ids=["empty", "unknown", "no cost", "negative", "cause"],
)
def test_what_is_no_event_is_refused_by_name(value: dict[str, object]) -> None:
    (entry,) = chain(STORY[:1])
    with pytest.raises(errors.InputError) as caught:
        Entry.from_json({**to_json(entry), "event": value})
    assert caught.value.reason in ("ledger_entry", "argument_value")


def test_a_seed_is_committed_to_and_not_told() -> None:
    assert commitment(b"s" * 32) != commitment(b"t" * 32)
    assert commitment(b"s" * 32) != sha256_hex(b"s" * 32)
    assert "73" * 32 not in str(to_json(chain(STORY)[3])), "the seed itself"


def test_the_chain_is_pure() -> None:
    """No clock, no database, no entropy in the ledger's own modules."""
    for path in (Path(__file__).parents[3] / "privacy" / "ledger").glob("*.py"):
        text = path.read_text()
        assert not any(word in text for word in ("import time", "datetime", "urandom", "secrets", "sqlalchemy")), path
