"""The caller of the control plane: a role, and the population that its token is for."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Forbidden, Unauthenticated
from coterie.protocol.control import TokenRole
from coterie.server.clock import now_ms
from coterie.server.store import tokens


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The holder of a role's token.

    token: its id.
    population: the only one that the token is for; None: all, those to come too.
    expires_at: when it runs out, in milliseconds; None: never.
    """

    token: str
    role: TokenRole
    population: str | None
    expires_at: int | None

    def reaches(self, population: str | None) -> bool:
        """Whether the token is for this population.

        population: None for what is of all.
        """
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
        """Return only if the token is for this population; None: for all.

        Raises Forbidden (``token_scope``), which does not tell whether there is such a population.
        """
        if self.reaches(population):
            return
        other = "all populations" if population is None else f"population {population[:64]!r}"
        raise Forbidden(
            f"This request is about {other}, and the token is for population {self.population!r} only.",
            hint=f"Name population {self.population!r}, or use another token.",
            code="token_scope",
        )

    def seconds_left(self) -> float | None:
        """How long the token is valid; None: until it is revoked."""
        return None if self.expires_at is None else max(0.0, (self.expires_at - now_ms()) / 1000)

    async def confirm(self, session: AsyncSession) -> None:
        """Return only if the token is still valid in this transaction: for requests that take long between the gate and
        their commit, and those that give rights to others. Raises Unauthenticated.
        """
        if not await tokens.valid(session, self.token):
            raise Unauthenticated(
                "The token was revoked or expired while the request was under way.", hint="Ask for a new one."
            )
