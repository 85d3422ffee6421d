"""What lying clients send: a table of attacks, to test reducers with. Pure functions of the honest updates."""

from coterie.aggregation.attacks.attack import Attack, Forge, Poison
from coterie.aggregation.attacks.optimised import Judge, LineSearch, optimised
from coterie.aggregation.attacks.table import ATTACKS, OPTIMISED, attack

__all__ = ["ATTACKS", "OPTIMISED", "Attack", "Forge", "Judge", "LineSearch", "Poison", "attack", "optimised"]
