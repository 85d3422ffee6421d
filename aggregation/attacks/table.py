"""The attacks by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from coterie import errors
from coterie.aggregation.attacks import forged, poisoned
from coterie.aggregation.attacks.attack import Attack
from coterie.aggregation.attacks.optimised import AttackedRule, Family, optimised

ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        made.name: made
        for made in (
            Attack("none", forged.as_trained),
            Attack("sign_flip", forged.inner_product(1.0)),
            Attack("ipm", forged.inner_product(2.0)),
            Attack("alie", forged.little_is_enough(1.5)),
            Attack("mimic", forged.mimic(0)),
            Attack("label_flip", forged.as_trained, poisoned.flip_labels),
            Attack("min_max", forged.min_max()),
            Attack("min_sum", forged.min_sum()),
            Attack("gaussian", forged.gaussian(1.0)),
            Attack("backdoor", forged.replacement(10.0), poisoned.plant_trigger),
            Attack("sybil", forged.sybil(1e-3)),
            Attack("free_rider", forged.free_rider()),
            Attack("nan", forged.constant(float("nan"))),
            Attack("inf", forged.constant(float("inf"))),
        )
    }
)


def _optimised_attack(name: str, family: Family) -> Callable[[AttackedRule], Attack]:
    return lambda judge: Attack(name, optimised(family, judge))


OPTIMISED: Mapping[str, Callable[[AttackedRule], Attack]] = MappingProxyType(
    {
        "opt_ipm": _optimised_attack("opt_ipm", forged.inner_product),
        "opt_alie": _optimised_attack("opt_alie", forged.little_is_enough),
    }
)
"""Attacks that are made for a rule: given what aggregates, the attack."""


def attack(name: str, judge: AttackedRule | None = None) -> Attack:
    """The attack of that name.

    judge: the rule that an attack of ``OPTIMISED`` is up against, as a function of all updates; the others do not ask.

    Raises errors.InputError: ``unknown_attack``, ``attack_needs_rule``.
    """
    if name in ATTACKS:
        return ATTACKS[name]
    if name not in OPTIMISED:
        raise errors.InputError(
            f"There is no attack {name[:64]!r}.",
            hint=f"Choose one of {', '.join((*ATTACKS, *OPTIMISED))}.",
            code="unknown_attack",
        )
    if judge is None:
        raise errors.InputError(
            f"The attack {name} optimises its strength against a reducer, and none was given.",
            hint=f"attack({name!r}, lambda updates: aggregate('median', updates))",
            code="attack_needs_rule",
        )
    return OPTIMISED[name](judge)
