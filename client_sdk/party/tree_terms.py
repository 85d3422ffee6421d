"""The terms of trees, from the label owner to the feature owners: one message, in the stage ``plan`` of a session. And
what trees of such terms tell, for the session's report.

They need no signature: messages are sealed between parties that have pinned each other's keys.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.learner_store import LearnerStore
from coterie.client_sdk.party.message_log import MessageLog
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.plans import STAGE, STEP, plan_told
from coterie.errors import ConfigurationError
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.conversion import to_json
from coterie.protocol.disclosures import Disclosure, DisclosureKind

_MOST_BYTES = 1 << 16


def send_terms(session: Session, terms: TreeTerms, *, patience_s: float | None = None) -> None:
    """Send terms to all feature owners. A session has one; what an earlier process has sent is not sent again.

    patience_s: how long to wait for each partner that has not joined; for as long as it takes when not given.
    Raises ConfigurationError (``role_unknown``) where the roles are not the session's, Conflict (``message_differs``)
    where others were sent before, and as `Session.send` does.
    """
    check_roles(session, terms.parties)
    body = canonical_json(to_json(terms))
    session.disclose(STAGE, *(plan_told(terms.label_owner, role, terms.digest) for role in terms.feature_owners))
    for role in terms.feature_owners:
        session.send(STAGE, role, body, sequence=0, step=STEP, patience_s=patience_s)
    session.finish(STAGE, STEP)


def receive_terms(session: Session, sender: str, folder: str | Path, *, patience_s: float | None = None) -> TreeTerms:
    """The terms that the label owner has sent, checked. Look at them before you grow trees on them.

    sender: the label owner's role.
    folder: where they are kept; with the same folder a later process has them again.
    patience_s: how long to wait for them; for as long as it takes when not given.
    Raises ConfigurationError (``trees_invalid``, ``role_unknown``), and as `Session.receive` does.
    """
    with closing(LearnerStore(Path(folder))) as store:
        log = MessageLog(session, STAGE, store)
        log.begin(STEP, plan_told(sender, session.membership.role, None))
        body = log.receive(sender, limit=_MOST_BYTES, patience_s=patience_s)
        terms = TreeTerms.from_json(parse_json(body, limit=_MOST_BYTES))
        log.begin(STEP, plan_told(sender, session.membership.role, terms.digest))
        log.finish()
    if terms.label_owner != sender:
        raise ConfigurationError(
            f"The terms that {sender} sent name {terms.label_owner[:64]!r} as the label owner.",
            hint="Ask the partner for terms of its own.",
            code="role_unknown",
        )
    check_roles(session, terms.parties)
    return terms


def check_roles(session: Session, parties: Sequence[str]) -> None:
    """Raise ConfigurationError (``role_unknown``) unless the roles of terms are those of the session."""
    named = {role.name for role in session.membership.terms.roles}
    if named != set(parties):
        raise ConfigurationError(
            f"The terms are for the roles {', '.join(sorted(parties))}; session {session.membership.name} has "
            f"{', '.join(sorted(named))}.",
            hint="Make the session with the roles of the terms, or the terms with those of the session.",
            code="role_unknown",
        )


_TOLD: Final[dict[str, tuple[tuple[DisclosureKind, str, bool, Callable[[TreeTerms], int]], ...]]] = {
    "train": (
        ("ciphertexts", "gradient and hessian", True, lambda terms: 2),
        ("instance_sets", "nodes", True, lambda terms: terms.depth),
        ("splits", "chosen", True, lambda terms: 0),
        ("values", "numbers of bins", False, lambda terms: 0),
        ("sums", "gradients and hessians of bins", False, lambda terms: 0),
        ("instance_sets", "sides", False, lambda terms: terms.depth),
    ),
    # Of every split, also of those that a row does not come by.
    "predict": (("instance_sets", "sides", False, lambda terms: (1 << terms.depth) - 1),),
}
"""By task: what is told, which, whether the label owner tells it, and how many numbers of a row are told for a tree: 0
where they are not of single rows."""


def told_by_trees(terms: TreeTerms, role: str, task: str, step: str, rows: int | None) -> list[Disclosure]:
    """By a call, to and by a role: at most, about every row, once for each tree that is not grown alone.

    task: "train" or "predict". step: what reports call the call. rows: None where it is not known yet.
    """
    owner, shared = terms.label_owner, terms.trees - terms.trees_alone
    return [
        Disclosure(
            step=step,
            sender=owner if by_owner else partner,
            recipient=partner if by_owner else owner,
            kind=kind,
            key=key,
            numbers=numbers(terms),
            rows=rows,
            times=max(1, shared),
            plan=terms.digest,
        )
        for partner in terms.feature_owners
        if role in (owner, partner)
        for kind, key, by_owner, numbers in _TOLD[task]
    ]
