"""Faults for tests: tables of every point between two durable facts of a party, of a role that learns and of an
alignment, and hooks that kill the process there.

``COTERIE_PARTY_FAULT="<point>:<nth>"`` sends SIGKILL to the process when it reaches the point for the nth time (counted
from 1); so do ``COTERIE_LEARNER_FAULT`` and ``COTERIE_ALIGNMENT_FAULT``. They are read when a party, a log of messages
or an alignment is made.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, final

from coterie.faults import FaultHook

VARIABLE: Final = "COTERIE_PARTY_FAULT"


@final
class PartyFaults(FaultHook):
    """The points of a party."""

    points: ClassVar[Mapping[str, str]] = {
        "taken": "the coordinator knows the party in its role, its folder does not",
        "joined": "the membership is stored, no key is offered",
        "key_made": "a key for a partner is stored, it is not offered",
        "offer_kept": "a partner's key is pinned and stored, the coordinator does not know that it came",
        "spooled": "the sealed bytes of a large message are on disk, the outbox does not know them",
        "sealed": "the outbox knows the message, nothing of it is sent",
        "sending": "a part of a large message is with the coordinator",
        "accepted": "the coordinator accepted the message, the outbox does not know that",
        "sent": "the outbox knows that the message is with the coordinator",
        "opening": "a part of a message has come and opened",
        "opened": "the record has a message, and its reader has not got its end",
        "worked_in": "a message is counted as worked in, the coordinator does not know that",
        "acknowledged": "the coordinator has deleted the message",
    }
    variable = VARIABLE


@final
class LearnerFaults(FaultHook):
    """The points of a role that learns."""

    points: ClassVar[Mapping[str, str]] = {
        "begun": "the call and the first weights are kept, nothing of it has left",
        "message_kept": "a message is on disk, the coordinator does not know that",
        "agreed": "all roles make the call, and it is kept that they do",
        "checkpoint_kept": "progress and the part of the model are kept",
        "call_done": "the result of the call is kept, nobody has it",
    }
    variable = "COTERIE_LEARNER_FAULT"


@final
class AlignmentFaults(FaultHook):
    """The points of an alignment."""

    points: ClassVar[Mapping[str, str]] = {
        "begun": "the terms and the secret key are kept, nothing has left",
        "agreed": "both parties align by these terms, and it is kept that they do",
        "blinded": "the party's own blinded ids are kept, none of them has left",
        "taken": "what was made of a message is on disk, the coordinator does not know that",
        "result_kept": "the result is kept and the key is deleted, nobody has the result",
    }
    variable = "COTERIE_ALIGNMENT_FAULT"
