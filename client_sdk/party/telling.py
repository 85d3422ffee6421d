"""What the calls of roles that learn together tell, as steps for the report of their session."""

from typing import Final

from coterie.aggregation.plan.session_manifest import SessionManifest
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.message_log import MessageLog
from coterie.protocol.disclosures import Disclosure

CALLS: Final = "calls"
"""The step of the messages by which roles agree on a call."""


def begin_calls(log: MessageLog, partners: list[str], role: str, plan: str) -> None:
    """Before the messages by which a role agrees with its partners: they tell, for every call, on how many rows it is.

    plan: its id.
    """
    ends = [pair for partner in partners for pair in ((role, partner), (partner, role))]
    log.begin(
        CALLS,
        *(
            Disclosure(step=CALLS, sender=sender, recipient=recipient, kind="row_counts", numbers=1, plan=plan)
            for sender, recipient in ends
        ),
    )


def begin_call(log: MessageLog, manifest: SessionManifest, role: str, call: LearnerCall) -> None:
    """Before the messages of a call that all roles make: what it tells at most; one that is broken off tells less."""
    step, times = f"{call.task} {call.number}", manifest.training.epochs if call.task == "train" else 1
    log.begin(
        step,
        *(
            told.model_copy(update={"step": step, "rows": call.rows, "times": times})
            for told in manifest.disclosures()
            if told.step == call.task and role in (told.sender, told.recipient)
        ),
    )
