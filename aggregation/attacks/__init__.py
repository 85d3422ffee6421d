"""What lying clients send: a table of attacks, to test reducers with. Pure functions of the honest updates."""

from coterie.aggregation.attacks.attack import Attack, Forge, Poison
from coterie.aggregation.attacks.optimised import AttackedRule, LineSearch, optimised
from coterie.aggregation.attacks.table import ATTACKS, OPTIMISED, attack

__all__ = ["ATTACKS", "OPTIMISED", "Attack", "Forge", "AttackedRule", "LineSearch", "Poison", "attack", "optimised"]
