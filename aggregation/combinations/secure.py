"""What is incompatible with secure aggregation: one table, with the reason and what to choose instead.

Secure aggregation is on by default from a cohort of ten; a clash is refused all the same, never silently resolved, so
that nobody runs in the open who did not say so.
"""

from typing import Final

from coterie import errors
from coterie.aggregation.combinations.clash import (
    IN_ROUNDS,
    SELECT_BLINDLY,
    Clash,
    buffers,
    reads_losses,
    rules_of,
    sections_of,
)
from coterie.aggregation.horizontal.algorithm import Rules
from coterie.aggregation.private.secure_aggregation import FROM_COHORT, mode_for
from coterie.aggregation.terms import Terms
from coterie.privacy.secagg.parameters import FEWEST_CLIENTS, parameters
from coterie.protocol.secure_aggregation import SecureAggregation

_RING: Final = (1 << 32) - 1


def _secure(terms: Terms) -> SecureAggregation:
    if terms.secure is None:
        raise errors.InternalError("Only experiments with secure aggregation are held to its rules.")
    return terms.secure


def _groups_of(terms: Terms) -> int | None:
    groups = _secure(terms).groups
    return None if groups is None else terms.rounds.cohort // groups


def _keeps_state(terms: Terms) -> str | None:
    name = f"algorithm {terms.algorithm.name!r}"
    return name if terms.algorithm.stateful and _secure(terms).mode == "consistent" else None


def _without_range(terms: Terms) -> str | None:
    named = [spec.name for spec in sections_of(terms) if spec.is_extra and spec.value_range is None]
    return f"algorithm {terms.algorithm.name!r} (its section {named[0]!r})" if named else None


def _too_wide(terms: Terms) -> str | None:
    for spec in sections_of(terms):
        if spec.reduction == "sum" and spec.value_range is not None:
            low, high = spec.value_range
            if terms.rounds.cohort * (high - low) > _RING:
                return f"cohort={terms.rounds.cohort} with sums up to {high:g} per client"
    return None


def _weights(terms: Terms) -> str | None:
    policy, bits = terms.rounds, _secure(terms).bits or 2
    means = any(spec.reduction == "weighted_mean" for spec in sections_of(terms))
    most = policy.cohort * policy.weight_cap * ((1 << bits) - 1 if means else 1)
    return f"weight_cap={policy.weight_cap} for a cohort of {policy.cohort} at {bits} bits" if most > _RING else None


def _without_parameters(terms: Terms) -> str | None:
    secure, policy = _secure(terms), terms.rounds
    mode = mode_for(secure, terms.privacy)
    fewest = policy.min_updates if secure.groups is None else policy.cohort // secure.groups
    for clients in sorted({fewest, _groups_of(terms) or policy.cohort}):
        if clients < FEWEST_CLIENTS:
            continue
        try:
            parameters(clients, corrupt=secure.corrupt, dropout=secure.dropout, mode=mode)
        except errors.ArgumentValueError:
            return f"corrupt={secure.corrupt:g} and dropout={secure.dropout:g} among {clients} clients in mode={mode!r}"
    return None


def _few_groups(terms: Terms) -> str | None:
    each = _groups_of(terms)
    return None if each is None or each >= FEWEST_CLIENTS else f"groups={_secure(terms).groups}"


def _uneven_groups(terms: Terms) -> str | None:
    policy, groups = terms.rounds, _secure(terms).groups
    offers_more = groups is not None and not policy.buffered and policy.tasks() > policy.cohort
    return f"groups={groups} with {policy.tasks()} tasks for a cohort of {policy.cohort}" if offers_more else None


_HIDES_NOBODY: Final = f"a sum of fewer than {FEWEST_CLIENTS} clients hides nobody"

SECURE: tuple[Clash, ...] = (
    Clash(
        buffers,
        "masks cancel among clients that trained on one version, and a buffer mixes versions",
        IN_ROUNDS,
    ),
    Clash(
        reads_losses,
        "it reads the loss of single clients, and only sums are ever seen",
        SELECT_BLINDLY,
    ),
    Clash(
        lambda t: f"reducer={t.reducer!r}" if t.reducer != "mean" and _secure(t).groups is None else None,
        "it must look at single updates, and only their sum is ever seen",
        "choose reducer='mean', whose clients bound their own norm (SecureAggregation(norm=...)), or "
        "SecureAggregation(groups=...), which gives the rule the means of random groups",
    ),
    Clash(
        lambda t: f"groups={_secure(t).groups}" if t.reducer == "mean" and _secure(t).groups is not None else None,
        "groups show more than one sum does, and a mean of groups is no safer than the mean of all",
        "choose a robust reducer such as nnm(f)+trimmed_mean(f), or leave groups out",
    ),
    Clash(
        _few_groups,
        _HIDES_NOBODY,
        "ask for fewer groups or a larger cohort",
    ),
    Clash(
        _uneven_groups,
        "a round ends with the first to finish, who would fill some groups and leave others too small for a sum",
        "leave over_selection and dropout out of the round policy, or leave groups out",
    ),
    Clash(
        lambda t: f"codecs={t.codecs!r}" if t.codecs != ("float32",) else None,
        "updates are added as whole numbers on a public grid, which no other codec's bytes can be",
        "leave codecs out and choose SecureAggregation(bits=..., norm=...)",
    ),
    Clash(
        lambda t: f"cohort={t.rounds.cohort}" if t.rounds.cohort < FEWEST_CLIENTS else None,
        _HIDES_NOBODY,
        f"choose a cohort of at least {FEWEST_CLIENTS}",
    ),
    Clash(
        lambda t: f"min_updates={t.rounds.min_updates}" if t.rounds.min_updates < FEWEST_CLIENTS else None,
        _HIDES_NOBODY,
        f"choose min_updates of at least {FEWEST_CLIENTS}",
    ),
    Clash(
        lambda t: (
            f"evaluation_cohort={t.rounds.evaluators()}"
            if t.rounds.evaluate_every and t.rounds.evaluators() < FEWEST_CLIENTS
            else None
        ),
        _HIDES_NOBODY,
        f"choose an evaluation_cohort of at least {FEWEST_CLIENTS}, or evaluate_every=0",
    ),
    Clash(
        _without_parameters,
        "no number of neighbours is enough for so many corrupt and dropped clients",
        "lower corrupt or dropout, or raise the cohort",
    ),
    Clash(
        _without_range,
        "what it sends besides the change has no public bound, so a ring could overflow",
        "choose a method that sends the change only, such as FedAvg or FedProx",
    ),
    Clash(
        _keeps_state,
        "it keeps state on devices, and state that one crafted version leaves makes a device's next update differ in "
        "ways that no norm bounds, so that a later sum may be that of one device",
        "choose FedAvg (with server_adam, say), FedProx or another method that keeps nothing on devices, or "
        "SecureAggregation(mode='semi_honest') where the coordinator is trusted to follow the protocol",
    ),
    Clash(_weights, "their sum does not fit a ring of 32 bits", "lower weight_cap, the cohort or the bits"),
    Clash(_too_wide, "their sum does not fit a ring of 32 bits exactly", "lower the cohort"),
)
"""With secure aggregation."""


def secure_clashes(terms: Terms) -> Rules:
    """What secure aggregation excludes, as rules: (holds, what is said)."""
    default = terms.secure_by_default
    why = f"secure aggregation (the default from a cohort of {FROM_COHORT})" if default else "secure aggregation"
    return rules_of(SECURE, terms, why, ", or set secure_aggregation=False") if terms.secure else ()
