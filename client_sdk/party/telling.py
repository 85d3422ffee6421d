"""What the calls of roles that learn together tell, as steps for the report of their session."""

from typing import Final

from coterie.aggregation.plan.session_manifest import SessionManifest
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.privacy.psi.messages import PsiHello
from coterie.protocol.disclosures import Disclosure, DisclosureKind

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


def told_by_plan(manifest: SessionManifest, role: str, call: LearnerCall) -> list[Disclosure]:
    """By a call of a plan's stages, to and by a role."""
    times = manifest.training.epochs if call.task == "train" else 1
    return [
        told.model_copy(update={"step": step_of(call), "rows": call.rows, "times": times})
        for told in manifest.disclosures()
        if told.step == call.task and role in (told.sender, told.recipient)
    ]


_OF_TREES: Final[dict[str, tuple[tuple[DisclosureKind, str, bool], ...]]] = {
    "train": (
        ("ciphertexts", "gradients", True),
        ("instance_sets", "nodes", True),
        ("splits", "chosen", True),
        ("values", "numbers of bins", False),
        ("sums", "gradients of bins", False),
        ("instance_sets", "sides", False),
    ),
    "predict": (("instance_sets", "sides", False),),
}
"""By task: what is told, which, and whether the label owner tells it."""


def told_by_trees(terms: TreeTerms, role: str, call: LearnerCall) -> list[Disclosure]:
    """By a call of boosted trees, to and by a role: about each row, once a tree."""
    owner = terms.label_owner
    return [
        Disclosure(
            step=step_of(call),
            sender=owner if by_owner else partner,
            recipient=partner if by_owner else owner,
            kind=kind,
            key=key,
            numbers=1,
            rows=call.rows,
            times=terms.trees,
            plan=terms.digest,
        )
        for partner in terms.feature_owners
        if role in (owner, partner)
        for kind, key, by_owner in _OF_TREES[call.task]
    ]


def told_by_alignment(hello: PsiHello, partner: str, step: str) -> list[Disclosure]:
    """By an alignment, to and by a party: of rows of which it does not know how many the partner has.

    hello: the party's first words.
    """
    result: DisclosureKind = "memberships" if hello.terms.result == "rows" else "intersection_sizes"
    found: list[Disclosure] = []
    for sender, recipient in ((hello.role, partner), (partner, hello.role)):
        kinds: list[DisclosureKind] = ["row_counts", "blinded_ids"]
        if hello.terms.told in ("", recipient):
            kinds.append(result)
        found += [Disclosure(step=step, sender=sender, recipient=recipient, kind=kind, numbers=1) for kind in kinds]
    return found
