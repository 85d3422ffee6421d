"""Ledgers for tests: an accountant that anybody can check by hand, and chains of events."""

import json
from collections.abc import Iterable, Sequence

from coterie.privacy.ledger.chain import Entry, Head, link
from coterie.privacy.ledger.events import LedgerEvent
from coterie.protocol.signing import SigningKey

KEY = SigningKey.from_seed(b"l" * 32)
PEOPLE = Head(population="people")


def cost(epsilon: float) -> tuple[str, ...]:
    """A cost that the accountant below reads."""
    return (f'{{"epsilon":{epsilon:g}}}',)


def adding(costs: Sequence[str], delta: float) -> float:
    """Epsilons add up: basic composition."""
    return sum(json.loads(text)["epsilon"] for text in costs)


def chain(events: Iterable[tuple[int, LedgerEvent]], head: Head = PEOPLE) -> list[Entry]:
    """The entries of events at their times."""
    made: list[Entry] = []
    for at, event in events:
        made.append(link(head, at, event, KEY))
        head = Head(population=head.population, sequence=made[-1].sequence, digest=made[-1].digest)
    return made
