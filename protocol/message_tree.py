"""Digests of many messages in little room, so that two who keep them can find where they differ.

A Merkle tree over the messages' SHA-256, in their order; of it the lowest level that has at most `MOST_NODES` nodes. A
node is ``SHA-256(0x01 ‖ left ‖ right)``; one without a right neighbour goes up as it is. So the nodes of a higher level
follow from those of a lower, and two trees of different heights can be compared. Of up to `MOST_NODES` messages each
digest is there; of more a difference is found to within ``2 ** height`` messages.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from coterie.protocol.canonical import GENESIS

MOST_NODES: Final = 1024
UNOPENED: Final = GENESIS
"""In place of the digest of a message that its recipient acknowledged and never opened."""


@dataclass(frozen=True)
class MessageTree:
    """A level of a tree.

    messages: how many it is over.
    height: of the level; a node stands for ``2 ** height`` messages, the last one for those that are left.
    nodes: SHA-256, hex; on height 0 those of the messages themselves.
    """

    messages: int
    height: int
    nodes: tuple[str, ...]

    @staticmethod
    def over(digests: Sequence[str]) -> "MessageTree":
        """The lowest level with at most `MOST_NODES` nodes."""
        tree = MessageTree(len(digests), 0, tuple(digests))
        while len(tree.nodes) > MOST_NODES:
            tree = tree.raised()
        return tree

    @property
    def is_whole(self) -> bool:
        """Whether there are as many nodes as messages ask for, and no fewer than room allows."""
        span = 1 << self.height
        fits = len(self.nodes) == -(-self.messages // span) <= MOST_NODES
        return fits and (not self.height or -(-self.messages // (span >> 1)) > MOST_NODES)

    def raised(self) -> "MessageTree":
        """The level above."""
        pairs = (self.nodes[place : place + 2] for place in range(0, len(self.nodes), 2))
        return MessageTree(self.messages, self.height + 1, tuple(map(_join, pairs)))


def differences(one: MessageTree, other: MessageTree) -> Iterator[tuple[int, int]]:
    """Ranges of messages, first and last, that both have and whose digests differ. A last node that stands for more
    messages in one than in the other is left out.
    """
    while one.height < other.height:
        one = one.raised()
    while other.height < one.height:
        other = other.raised()
    span, common = 1 << one.height, min(one.messages, other.messages)
    is_same_end = one.messages == other.messages
    for place, (mine, theirs) in enumerate(zip(one.nodes, other.nodes, strict=False)):
        first, last = place * span, (place + 1) * span - 1
        if mine != theirs and (last < common or is_same_end):
            yield first, min(last, common - 1)


def _join(pair: Sequence[str]) -> str:
    if len(pair) == 1:
        return pair[0]
    return hashlib.sha256(b"\x01" + b"".join(map(bytes.fromhex, pair))).hexdigest()
