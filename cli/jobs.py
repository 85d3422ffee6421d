"""The job of a session as people read it, and as they say it on a command line."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coterie.errors import InputError

if TYPE_CHECKING:
    from coterie.client_sdk.party.alignment_ids import RowIds
    from coterie.client_sdk.party.job_table import JobTable
    from coterie.client_sdk.party.party import Session
    from coterie.protocol.disclosures import Disclosure
    from coterie.protocol.session import SessionTerms


def job_asked(
    label_owner: str | None, method: str | None, settings: Sequence[str], steps: str | None
) -> dict[str, Any] | None:
    """The job that options say, as JSON values; None where they say none. Raises InputError (``session_invalid``)."""
    if label_owner is None:
        if method is not None or settings or steps is not None:
            raise InputError(
                "--method, --set and --steps say what a session is for, and so does --label-owner, which is missing.",
                hint="Give --label-owner ROLE.",
                code="session_invalid",
            )
        return None
    if method is None:
        raise InputError(
            "--label-owner says who has the labels, and not how they are learned.",
            hint="Give --method trees or --method linear.",
            code="session_invalid",
        )
    options = dict(map(_setting, settings))
    job: dict[str, Any] = {"label_owner": label_owner, "method": {**options, "method": method}}
    if steps is not None:
        job["steps"] = tuple(step.strip() for step in steps.split(","))
    return job


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(
            f"--set {text[:80]!r} gives no option a value.", hint="Write it like --set depth=3.", code="session_invalid"
        )
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()


def job_lines(terms: "SessionTerms") -> list[str]:
    """What a session is for, in sentences; none where it does not say."""
    job = terms.job
    if job is None:
        return []
    roles = ", ".join(f"{role.party} (role {role.name})" for role in terms.roles)
    owner = terms.role(job.label_owner)
    options = job.method.model_dump(exclude={"method"})
    return [
        f"The job, of {roles}: {', '.join(job.steps)}.",
        f"The labels are those of {job.label_owner if owner is None else owner.party} (role {job.label_owner}).",
        f"Method {job.method.method}: {', '.join(f'{name}={value}' for name, value in options.items())}.",
    ]


def leaving_lines(session: "Session", table: "JobTable") -> list[str]:
    """What will leave this party, for whom, and what it will learn, in sentences."""
    from coterie.client_sdk.party.job import session_job, told_by_job

    own, terms = session.membership.role, session.membership.terms
    job = session_job(session)
    lines = [f"Of {len(table)} rows, the columns {', '.join(table.columns) or '(none)'} are learned from."]
    if "align" in job.steps and table.ids is not None:
        lines += leaving(session, table.ids, None, count=False)
    told = told_by_job(session)
    names = {role.name: f"{role.party} (role {role.name})" for role in terms.roles}
    lines += [f"To {names[each.recipient]}, step {each.step}: {_what(each)}." for each in told if each.sender == own]
    lines += [f"From {names[each.sender]}, step {each.step}: {_what(each)}." for each in told if each.sender != own]
    return lines


def _what(told: "Disclosure") -> str:
    from coterie.protocol.disclosures import KINDS

    amount = f", {told.numbers} a row" if told.numbers else ""
    times = f", {told.times} times" if told.times > 1 and told.numbers else ""
    return f"{told.key or told.kind}{amount}{times} ({KINDS[told.kind]})"


def leaving(session: "Session", ids: "RowIds", told: str | None, *, count: bool) -> list[str]:
    """What leaves this party in an alignment, and who learns what, in sentences.

    count: whether only the number of common ids is told.
    """
    from coterie.client_sdk.party.alignment import partner_of

    own, other = session.membership.role, partner_of(session)
    partner = f"{other.party} (role {other.name})"
    what = "how many ids are common" if count else "which of its ids this party has too: who is in both tables"
    lines = [
        f"To {partner}: the number of ids in {ids.source}, {len(ids.ids)}, and each id blinded by a secret key. "
        "Neither it nor the coordinator can tell an id from that.",
    ]
    if told in (None, other.name):
        lines.append(f"{partner} learns {what}.")
    if told in (None, own):
        lines.append(f"This party learns {'how many' if count else 'which'} of its ids {partner} has too.")
    return lines
