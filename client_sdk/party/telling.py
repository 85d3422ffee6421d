"""The steps of calls in the report of a session, and what roles tell by agreeing on them."""

from typing import Final

from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.protocol.disclosures import Disclosure

CALLS: Final = "calls"
"""The step of the messages by which roles agree on a call."""


def step_of(call: LearnerCall) -> str:
    """The step of a call that all roles make."""
    return f"{call.task} {call.number}"


def told_by_calls(partners: list[str], role: str, plan: str) -> list[Disclosure]:
    """By the messages by which a role agrees with its partners: for every call, on how many rows it is.

    plan: its id.
    """
    ends = [pair for partner in partners for pair in ((role, partner), (partner, role))]
    return [
        Disclosure(step=CALLS, sender=sender, recipient=recipient, kind="row_counts", numbers=1, plan=plan)
        for sender, recipient in ends
    ]
