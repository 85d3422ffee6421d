"""What one role of a session tells another: one record for plans, which say it beforehand, for steps, which say it when
they begin, and for the reports of a session.

What is told is named by a closed set of kinds. The name is the word of the program that made the step; what bounds it
is the number of numbers, which coterie counts, and the digests of the messages.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import StringConstraints

from coterie.protocol.canonical import canonical_json
from coterie.protocol.wire import Positive, SessionWord, Sha256, Signed, Whole

DisclosureKind: TypeAlias = Literal[
    "opaque",
    "plan",
    "row_counts",
    "blinded_ids",
    "intersection_sizes",
    "memberships",
    "values",
    "labels",
    "embeddings",
    "gradients",
    "predictions",
    "sums",
    "splits",
    "instance_sets",
    "ciphertexts",
    "shares",
]
KINDS: Final[Mapping[DisclosureKind, str]] = {
    "opaque": "bytes of which coterie does not know what is in them",
    "plan": "a plan: graphs, and what passes between roles",
    "row_counts": "how many rows the sender has",
    "blinded_ids": "ids under a key that the recipient lacks",
    "intersection_sizes": "how many rows both have",
    "memberships": "which of the recipient's rows the sender has too",
    "values": "other numbers, made of what the sender has",
    "labels": "labels of rows",
    "embeddings": "what the sender's part of a network makes of its columns",
    "gradients": "gradients of the loss, of rows",
    "predictions": "what a model says of rows",
    "sums": "sums over rows",
    "splits": "the split of a node: whose column, and how good it is",
    "instance_sets": "which rows are in a node of a tree",
    "ciphertexts": "numbers under a key that the recipient lacks",
    "shares": "random parts of a secret, of which one alone says nothing",
}
DisclosureClaim: TypeAlias = Literal["semi_honest", "malicious", "none"]
CLAIMS: Final[Mapping[DisclosureClaim, str]] = {
    "semi_honest": "holds where all roles follow the protocol, however long they look at what they get",
    "malicious": "holds also where other roles deviate from the protocol",
    "none": "nothing is claimed of what is told",
}
MESSAGES_STEP: Final = "messages"
"""The step of messages that no step has taken for its own."""
LONGEST_KEY: Final = 200
StepName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9 ._-]{0,63}$")]
_Key = Annotated[str, StringConstraints(max_length=LONGEST_KEY, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Disclosure(Signed):
    """What one role tells another in one step: by a message, or by what it can work out of messages.

    step: in which it is told; in a plan, the task.
    kind: what is told, one of `KINDS`.
    key: which of them, where a step tells several of a kind.
    numbers: how many there are for each row, each time that the row comes up.
    rows: about how many rows it is; None where this role does not know, or it is not known yet.
    times: how often each row comes up at most.
    form, size: how numbers are written (`coterie.protocol.cut_tensors`), and how many bytes a batch of them has, where
        a plan says so.
    protection: what is done to them before; empty where nothing is.
    plan: the id of the plan that says so; None where there is none, or it is not known yet.
    claim: what has to hold for this to be all that the recipient learns, one of `CLAIMS`.
    """

    step: StepName
    sender: SessionWord
    recipient: SessionWord
    kind: DisclosureKind
    key: _Key = ""
    numbers: Whole = 0
    rows: Whole | None = None
    times: Positive = 1
    form: _Key = "float32"
    size: Whole = 0
    protection: _Key = ""
    plan: Sha256 | None = None
    claim: DisclosureClaim = "semi_honest"

    @property
    def subject(self) -> bytes:
        """All but what a party may not know: equal for what is said of one thing."""
        return canonical_json(self.model_dump(mode="json", exclude=set(_OPEN)))

    def agrees_with(self, other: "Disclosure") -> bool:
        """Whether both may be said of one thing: they are equal in all that both know."""
        known = ((getattr(self, name), getattr(other, name)) for name in _OPEN)
        return all(None in pair or pair[0] == pair[1] for pair in known) and self.subject == other.subject

    def says_more_than(self, other: "Disclosure") -> bool:
        """Whether this one is of the same thing, and knows what the other leaves open, and no less."""
        gains = [name for name in _OPEN if getattr(other, name) is None and getattr(self, name) is not None]
        loses = [name for name in _OPEN if getattr(self, name) is None and getattr(other, name) is not None]
        return bool(gains) and not loses and self.agrees_with(other)


_OPEN: Final = frozenset(("rows", "plan"))
"""Fields that a party may not know."""


def shown_key(text: str) -> str:
    """A text of somebody else as a key: without characters that a terminal obeys, and not too long."""
    return "".join(character if character.isprintable() else "?" for character in text)[:LONGEST_KEY]
