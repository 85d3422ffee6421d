"""The plan of a session, from the role that made it to the others: first the manifest, then each graph, each a message
of its own.

A plan needs no signature: messages are sealed between parties that have pinned each other's keys.
"""

from contextlib import closing
from pathlib import Path
from typing import Final, cast

from coterie.aggregation.plan.check import PlanLimits
from coterie.aggregation.plan.check_session import SessionPlan, check_session_plan, file_names
from coterie.aggregation.plan.session_manifest import SessionManifest
from coterie.client_sdk.party.learner_store import LearnerStore
from coterie.client_sdk.party.message_log import MessageLog
from coterie.client_sdk.party.party import Session
from coterie.errors import ArgumentTypeError, PlanRefused
from coterie.protocol.disclosures import Disclosure

STAGE: Final = "plan"
"""The stage of a session in which plans are sent."""
STEP: Final = "plan"
"""The step of its messages."""


def send_plan(session: Session, plan: SessionPlan, *, patience_s: float | None = None) -> None:
    """Send a plan to all partners. A session has one plan; what an earlier process has sent is not sent again.

    patience_s: how long to wait for each partner that has not joined; for as long as it takes when not given.
    Raises errors.PlanRefused for one that partners would refuse or whose roles are not the session's, InputError
    (``stage_unknown``) in a session without a stage ``plan``, Conflict (``message_differs``) where another plan was
    sent before, and as `Session.send` does.
    """
    require_plan(plan)
    check_session_plan(plan)
    _check_roles(session, plan.manifest)
    bodies = [plan.manifest.data, *(plan.graphs[name] for name in file_names(plan.manifest))]
    own = session.membership.role
    partners = [role.name for role in session.membership.terms.roles if role.name != own]
    session.disclose(STAGE, *(plan_told(own, role, plan.id) for role in partners))
    for role in partners:
        for number, body in enumerate(bodies):
            session.send(STAGE, role, body, sequence=number, step=STEP, patience_s=patience_s)
    session.finish(STAGE, STEP)


def receive_plan(session: Session, sender: str, folder: str | Path, *, patience_s: float | None = None) -> SessionPlan:
    """The plan that a role has sent, checked. Look at `SessionManifest.disclosures` before you run it.

    sender: the role.
    folder: where it is kept; with the same folder a later process has it again.
    patience_s: how long to wait for each message; for as long as it takes when not given.
    Raises errors.PlanRefused, and as `Session.receive` does.
    """
    limits = PlanLimits()
    with closing(LearnerStore(Path(folder))) as store:
        log = MessageLog(session, STAGE, store)
        log.begin(STEP, plan_told(sender, session.membership.role, None))
        data = log.receive(sender, limit=limits.manifest_bytes, patience_s=patience_s)
        manifest = SessionManifest.from_bytes(data)
        log.begin(STEP, plan_told(sender, session.membership.role, manifest.id))
        graphs = {
            name: log.receive(sender, limit=limits.graph.graph_bytes, patience_s=patience_s)
            for name in file_names(manifest)
        }
        log.finish()
    plan = SessionPlan(manifest, graphs)
    check_session_plan(plan, limits)
    _check_roles(session, manifest)
    return plan


def require_plan(plan: SessionPlan) -> None:
    """Raise errors.ArgumentTypeError for what is no plan of a session."""
    if not isinstance(cast(object, plan), SessionPlan):
        raise ArgumentTypeError(
            f"This needs a SessionPlan, not a {type(plan).__name__}.",
            hint="compile_split(network) makes one of a SplitNetwork, and receive_plan(...) takes a partner's.",
        )


def plan_told(sender: str, recipient: str, plan: str | None) -> Disclosure:
    """That a role tells another a plan, or terms. plan: its id, once it is known."""
    return Disclosure(step=STEP, sender=sender, recipient=recipient, kind="plan", plan=plan, claim="none")


def _check_roles(session: Session, manifest: SessionManifest) -> None:
    named = {role.name for role in session.membership.terms.roles}
    if named != set(manifest.roles):
        raise PlanRefused(
            f"Plan {manifest.name!r} is for the roles {', '.join(sorted(manifest.roles))}; session "
            f"{session.membership.name} has {', '.join(sorted(named))}.",
            hint="Make the session with the roles of the plan, or the plan with those of the session.",
            code="role_unknown",
        )
