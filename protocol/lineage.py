"""The versions of an experiment as a hash chain: which round committed which version, after which others.

A link is hashed with the head of all that came before it, so a head stands for the whole history up to one version.
Whoever remembers an earlier head can tell, from the links since, whether a later one goes on from it.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from coterie.protocol.canonical import canonical_json
from coterie.protocol.wire import Response, Sha256, Signed, Whole

DOMAIN: Final = b"coterie/lineage/v1\n"
GENESIS: Final = "0" * 64
"""What stands before the first link, that of the initial version: round 0."""
MOST_LINKS: Final = 256
"""So many links one answer has at most."""


class Lineage(Signed):
    """Where a task's version stands.

    round: what committed it, or would commit it, 0 for the initial version.
    before: the head of the chain before it.
    """

    round: Whole
    before: Sha256


class LineageLink(Response):
    """One version.

    round: what committed it.
    version: its SHA-256.
    """

    round: Whole
    version: Sha256


class Links(Response):
    """Links in the order of rounds; none where there are no more."""

    links: Annotated[tuple[LineageLink, ...], Field(max_length=MOST_LINKS)] = ()


def head(before: str, link: LineageLink, *, experiment: str, plan: str) -> str:
    """The head of the chain that ends with a link, as 64 hex digits.

    before: the head without it.
    """
    said = {"before": before, "experiment": experiment, "plan": plan, "round": link.round, "version": link.version}
    return hashlib.sha256(DOMAIN + canonical_json(said)).hexdigest()


def fold(before: str, links: Iterable[LineageLink], *, experiment: str, plan: str) -> str:
    """The head of the chain that goes on from ``before`` with these links."""
    for link in links:
        before = head(before, link, experiment=experiment, plan=plan)
    return before
