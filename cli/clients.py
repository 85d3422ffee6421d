"""`coterie client`: to join, and what an owner asks of a client afterwards."""

from typing import Any, Final

import typer
from typer.core import TyperGroup

from coterie.cli import client, owner

JOIN: Final = "join"
OWN: Final = (("history", owner.history), ("export", owner.export), ("withdraw", owner.withdraw))


class _Joins(TyperGroup):
    """A group whose first word may be left out: `coterie client URL` is `coterie client join URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words with the command that they mean."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else [JOIN, *args])


app = typer.Typer(
    cls=_Joins, help="Join and train on local data; history: what it did; export: its model; withdraw: leave."
)
app.command(JOIN, short_help="Join and train on local data.")(client.client)
for _name, _command in OWN:
    app.command(_name)(_command)
