"""The caller of the control plane: a role, and the population that it is for."""

from dataclasses import dataclass

from coterie.errors import Forbidden
from coterie.protocol.control import Role


@dataclass(frozen=True)
class Caller:
    """The holder of a role's token.

    token: its id. population: the only one that the token is for; None: all, those to come too.
    """

    token: str
    role: Role
    population: str | None

    def reaches(self, population: str | None) -> bool:
        """Whether the token is for this population. population: None for what is of all."""
        return self.population is None or self.population == population

    def within(self, population: str | None) -> str | None:
        """Which population a list is of: the one that was asked for, else the token's; None: all.

        Raises Forbidden (``token_scope``).
        """
        if population is None:
            return self.population
        self.check(population)
        return population

    def check(self, population: str | None) -> None:
        """Return only if the token is for this population. Raises Forbidden (``token_scope``)."""
        if self.reaches(population):
            return
        other = "This route concerns every population" if population is None else f"This is about {population[:64]!r}"
        raise Forbidden(
            f"{other}, and the token is for population {self.population!r} only.",
            hint="Use a token for all populations, or one for the population that you mean.",
            code="token_scope",
        )
