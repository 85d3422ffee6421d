"""The attacks by name."""

from collections.abc import Mapping
from types import MappingProxyType

from coterie import errors
from coterie.aggregation.attacks import forged, poisoned
from coterie.aggregation.attacks.attack import Attack

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


def attack(name: str) -> Attack:
    """The attack of that name. Raises errors.InputError (``unknown_attack``)."""
    if name not in ATTACKS:
        raise errors.InputError(
            f"There is no attack {name[:64]!r}.", hint=f"Choose one of {', '.join(ATTACKS)}.", code="unknown_attack"
        )
    return ATTACKS[name]
