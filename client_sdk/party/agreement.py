"""How roles agree on the call that they make together: each says which, then whether all say the same."""

from typing import Any, Final, cast

from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.message_log import MessageLog
from coterie.errors import Conflict, InputError
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.disclosures import Disclosure
from coterie.protocol.tensors import encode_tensors, open_tensors

KEY: Final = "at"
"""The metadata of a message that say what it is about."""
HEADER_BYTES: Final = 1 << 16
"""Most bytes of a message beside its tensors."""
CALLS: Final = "calls"
"""The step of the messages by which roles agree on a call."""


def agree(log: MessageLog, partners: list[str], plan: str, call: LearnerCall, patience_s: float | None) -> None:
    """Return only if all partners make this call. Two short messages to each and from each; nothing of a row leaves.

    Raises Conflict (``session_step``) with all roles alike, so that each may make another call; and as `MessageLog`
    does.
    """
    own = _call_text(plan, call)
    others = {role: text for role, text in _exchange(log, partners, own, patience_s).items() if text != own}
    refusing = _refusing(log, partners, call, agreed=not others, patience_s=patience_s)
    if others:
        role, text = next(iter(others.items()))
        raise elsewhere(f"{role} {_what_it_does(text)}, and this role {_what_it_does(own)}.")
    if refusing:
        mine = _what_it_does(own)
        raise elsewhere(f"Another role makes another call than this one, which {mine}: {refusing[0]} says so.")


def withdraw(log: MessageLog, partners: list[str], plan: str, call: LearnerCall, patience_s: float | None) -> None:
    """Take back a call that was announced and not agreed on: the partners hear that it is not made.

    Raises Conflict (``message_differs``) where they may have heard that it is, and as `MessageLog` does.
    """
    _exchange(log, partners, _call_text(plan, call), patience_s)
    _refusing(log, partners, call, agreed=False, patience_s=patience_s)


def step_text(call: LearnerCall) -> str:
    """Which batch of which call a message is about."""
    return canonical_json({"call": call.number, "task": call.task, "step": call.step}).decode()


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


def elsewhere(message: str) -> Conflict:
    """The refusal of a partner that is at another place of the plan."""
    return Conflict(
        message,
        hint="All roles make the same calls in the same order, on the same number of rows, of which row i is about the "
        "same person in each.",
        code="session_step",
    )


def _refusing(
    log: MessageLog, partners: list[str], call: LearnerCall, *, agreed: bool, patience_s: float | None
) -> list[str]:
    """The partners that do not make the call, once each has heard whether this role does."""
    verdicts = _exchange(log, partners, _verdict_text(call, agreed=agreed), patience_s)
    return [role for role, text in verdicts.items() if text != _verdict_text(call, agreed=True)]


def _exchange(log: MessageLog, partners: list[str], text: str, patience_s: float | None) -> dict[str, str]:
    """Tell every partner a text, and hear one from each."""
    for role in partners:
        log.send(role, encode_tensors({}, {KEY: text}), patience_s=patience_s)
    found: dict[str, str] = {}
    for role in partners:
        data = log.receive(role, limit=HEADER_BYTES, patience_s=patience_s)
        found[role] = open_tensors(data).metadata.get(KEY, "")
    return found


def _call_text(plan: str, call: LearnerCall) -> str:
    """The call, as all roles must see it."""
    said = {"plan": plan, "call": call.number, "task": call.task, "rows": call.rows, "trained": call.trained}
    return canonical_json(said).decode()


def _verdict_text(call: LearnerCall, *, agreed: bool) -> str:
    return canonical_json({"call": call.number, "agreed": agreed}).decode()


def _what_it_does(text: str) -> str:
    """What a role said of its call, in words."""
    try:
        value = cast(dict[str, Any], parse_json(text.encode(), limit=HEADER_BYTES))
        return (
            f"makes call {value['call']}, {value['task']} on {value['rows']} rows, after {value['trained']} trainings, "
            f"of plan {str(value['plan'])[:12]}…"
        )
    except (InputError, KeyError, TypeError):
        return f"is at {text[:200] or 'an unknown place'}"
