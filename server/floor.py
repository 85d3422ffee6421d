"""The floor that an operator sets under a population's experiments, held against what a researcher asks for."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from coterie.aggregation.methods import known_methods
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.secure_aggregation import fewest_of_group
from coterie.errors import ExperimentError, Forbidden
from coterie.protocol.control import ExperimentCreate, PolicyChange, PopulationPolicy
from coterie.protocol.privacy import ExampleLevel
from coterie.server.store.tables import PopulationRow


@dataclass(frozen=True)
class ExperimentFacts:
    """What of an experiment the floor looks at.

    secure: whether it asks for secure aggregation.
    """

    request: ExperimentCreate
    algorithm: str
    secure: bool


@dataclass(frozen=True)
class Line:
    """One line of a policy.

    set: whether an operator has drawn it.
    meets: whether an experiment keeps above it.
    wants, has: the two sides in words.
    instead: what a researcher can do.
    """

    set: Callable[[PopulationPolicy], bool]
    meets: Callable[[PopulationPolicy, ExperimentFacts], bool]
    wants: Callable[[PopulationPolicy], str]
    has: Callable[[ExperimentFacts], str]
    instead: str


def _fewest(facts: ExperimentFacts) -> int:
    """Of how few devices a sum of this experiment may be: of updates, of a group, or of what devices measure."""
    policy, fewest = facts.request.rounds, facts.request.rounds.min_updates
    secure = facts.request.secure
    if secure is not None and secure.groups is not None and policy.purpose == "train":
        fewest = min(fewest, fewest_of_group(policy.cohort, secure))
    if policy.purpose == "train" and policy.evaluate_every == 0:
        return fewest
    # What devices measure in the open beside training is the sum of whoever has answered in time.
    bounded = facts.secure or policy.purpose == "evaluate"
    return min(fewest, policy.evaluators()) if bounded else 1


def _unit(facts: ExperimentFacts) -> str:
    """Whom its privacy protects. Rounds that only measure add no noise, whatever privacy was asked for."""
    if facts.request.privacy is None or facts.request.rounds.purpose == "evaluate":
        return "none"
    return "example" if isinstance(facts.request.privacy, ExampleLevel) else "user"


def _bounded(policy: PopulationPolicy) -> bool:
    return policy.max_epsilon_per_experiment is not None or policy.max_epsilon_per_year is not None


LINES: dict[str, Line] = {
    "require_secure_aggregation": Line(
        lambda policy: policy.require_secure_aggregation,
        lambda policy, facts: facts.secure,
        lambda policy: "secure aggregation",
        lambda facts: "asks for none",
        "Leave secure_aggregation out, or give SecureAggregation(...), in a cohort that it can serve.",
    ),
    "min_cohort": Line(
        lambda policy: policy.min_cohort is not None,
        lambda policy, facts: _fewest(facts) >= (policy.min_cohort or 1),
        lambda policy: f"at least {policy.min_cohort} devices in every sum",
        lambda facts: f"allows sums of {_fewest(facts)}",
        "Raise RoundPolicy(cohort=..., min_updates=...), or ask for fewer groups. Where devices evaluate, aggregate "
        "securely and raise evaluation_cohort, or set evaluate_every=0: in the open, what few have measured counts.",
    ),
    "algorithms": Line(
        lambda policy: policy.algorithms is not None,
        lambda policy, facts: facts.algorithm in (policy.algorithms or ()),
        lambda policy: f"one of the algorithms {', '.join(policy.algorithms or ())}",
        lambda facts: f"runs {facts.algorithm}",
        "Choose another algorithm.",
    ),
    "unit": Line(
        _bounded,
        lambda policy, facts: _unit(facts) in ("user", policy.unit),
        lambda policy: f"differential privacy of the {policy.unit}, since it bounds ε",
        lambda facts: "asks for none" if _unit(facts) == "none" else f"protects the {_unit(facts)}",
        "Give Experiment(privacy=UserLevel(...)).",
    ),
}


def check_floor(population: str, policy: PopulationPolicy, request: ExperimentCreate, manifest: Manifest) -> None:
    """Return only if the experiment keeps above every line of the population's policy. What it costs, and whether the
    limits of ε allow that, the ledger says.

    Raises errors.Forbidden (``population_policy``) that names the first line below which it goes.
    """
    facts = ExperimentFacts(request, manifest.algorithm.name, secure=asks_secrecy(request))
    for name, line in LINES.items():
        if line.set(policy) and not line.meets(policy, facts):
            raise Forbidden(
                f"Population {population!r} wants {line.wants(policy)} (line {name} of its policy); this experiment "
                f"{line.has(facts)}.",
                hint=line.instead,
                code="population_policy",
                line=name,
            )


def check_signer(population: str, policy: PopulationPolicy, public: str) -> None:
    """Return only if a key may be added to the population's signers, outside of a change of its policy.

    Raises errors.Forbidden (``population_policy``) where an operator has named them.
    """
    if policy.signers_only:
        raise Forbidden(
            f"Population {population!r} accepts plans of the keys that its operator has named (line signers of its "
            f"policy); {public[:16]}… is none of them.",
            hint=f"Sign with one of those (--key FILE), or ask the operator: coterie policy {population} --signer KEY "
            "(again for each that shall stay).",
            code="population_policy",
            line="signers",
        )


def check_names(change: PolicyChange) -> None:
    """Return only if there are algorithms of the names that a change allows: one that is misspelt would allow none.

    Raises errors.ExperimentError (``unknown_algorithm``).
    """
    known = known_methods()
    unknown = [name for name in change.algorithms or () if name not in known]
    if unknown:
        raise ExperimentError(
            f"There is no algorithm {unknown[0][:64]!r}, so a policy that allows it would allow nothing by it.",
            hint=f"There are {', '.join(known)}.",
            code="unknown_algorithm",
        )


def asks_secrecy(request: ExperimentCreate) -> bool:
    """Whether no update of one device of this experiment is seen by the coordinator."""
    return request.secure is not None


def policy_of(row: PopulationRow) -> PopulationPolicy:
    """The policy of a population."""
    return PopulationPolicy.model_validate_json(row.policy)


def changed(policy: PopulationPolicy, change: PolicyChange) -> PopulationPolicy:
    """The policy after a change. Raises pydantic.ValidationError where its lines do not go together."""
    changes = change.model_dump(exclude_unset=True, exclude={"signers"})
    if "signers" in change.model_fields_set:
        changes["signers_only"] = change.signers is not None
    kept = {name: value for name, value in policy.model_dump().items() if name not in changes}
    return PopulationPolicy.model_validate(kept | {name: value for name, value in changes.items() if value is not None})


def to_row(policy: PopulationPolicy) -> str:
    """The policy as its column holds it."""
    return json.dumps(policy.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
