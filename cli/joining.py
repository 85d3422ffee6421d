"""How clients join what was just submitted."""

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from coterie.cli.output import Output
from coterie.cli.places import DEFAULT_URL
from coterie.errors import RemoteError

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control, Run


def again(url: str, ca: Path | None) -> str:
    """The options that a next command of the same coordinator needs; empty where it finds it without."""
    place = "" if url == os.environ.get("COTERIE_URL", DEFAULT_URL) else f" --url {quote(url)}"
    return place + ("" if ca is None else f" --ca {quote(str(ca))}")


def joining(
    output: Output,
    control: "Control",
    run: "Run",
    population: str,
    url: str,
    ca: Path | None,
    *,
    external: bool = False,
    **details: Any,
) -> str:
    """The command with which a client joins the population, with a new token; where the caller's role may make none,
    `TOKEN` stands in for it, and how an operator makes one is said. Programs get the event ``submitted``, and `details`
    with it.

    external: the plan leaves training to the client's own trainer.
    """
    try:
        token = control.enrolment_token(population).token
    except RemoteError as error:
        if error.reason != "token_role":
            raise
        token = None
        output.say(f"TOKEN is an operator's to make: coterie tokens make --population {population}{again(url, ca)}")
    join = f"coterie client {url} --token {token or 'TOKEN'} --data YOUR_DATA"
    if external:
        join += " --trainer MODULE:OBJECT"
    if ca is not None:
        join += f" --ca {quote(str(ca))}"
    output.event(
        "submitted",
        experiment=run.id,
        name=run.name,
        population=population,
        url=url,
        token=token,
        join=join,
        **details,
    )
    return join
