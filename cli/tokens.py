"""`coterie tokens`: what lets people and devices in, and taking it back."""

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from coterie.cli.output import JsonOption, Output
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.errors import InputError, NotFound

app = typer.Typer(help="List, make and revoke tokens.")
_COLUMNS = ("id", "kind", "name", "population", "uses left", "expires", "state")
_MINUTE = 16


RoleOption = Literal["admin", "operator", "researcher", "auditor"]
"""As in `coterie.protocol.control`, whose import would slow down every `--help`."""


@app.callback()
def tokens() -> None:
    """List, make and revoke tokens. The secret of a token is shown once, where it is made."""


@app.command("list")
def list_tokens(
    url: UrlOption = DEFAULT_URL, token: TokenOption = None, ca: AuthorityOption = None, json: JsonOption = False
) -> None:
    """List the tokens of a coordinator, without their secrets."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        found = control.tokens()
    rows: list[tuple[object, ...]] = []
    for view in found:
        told = view.model_dump(mode="json")
        output.event("token", **told)
        expires = "never" if view.expires_at is None else str(told["expires_at"])[:_MINUTE].replace("T", " ")
        uses = "any number" if view.uses_left is None else view.uses_left
        is_over = view.expires_at is not None and view.expires_at <= datetime.now(UTC)
        state = "revoked" if view.revoked else "expired" if is_over else "valid"
        rows.append((view.id, view.kind, view.name, view.population or "-", uses, expires, state))
    output.table(_COLUMNS, rows, empty="No token.")


@app.command("make")
def make(
    population: Annotated[
        str | None, typer.Option(help="The population that devices join with it, or that a role is limited to.")
    ] = None,
    role: Annotated[
        RoleOption | None, typer.Option(help="For a person or a script instead of devices: what it may do.")
    ] = None,
    name: Annotated[str, typer.Option(help="What it is for.")] = "made by hand",
    uses: Annotated[int | None, typer.Option(min=1, help="How many devices may join (default: no limit).")] = None,
    expires: Annotated[int | None, typer.Option(min=1, help="Seconds until it expires (default: never).")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Make a token, and show its secret this once: for devices to join a population, or for a role."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    if role is None and population is None:
        raise InputError(
            "A token needs --role or --population.",
            hint="Give --population NAME for devices that join, or --role ROLE for a person or a script.",
            code="token_population",
        )
    if role is not None and uses is not None:
        raise InputError(
            "Only tokens with which devices join have a number of uses.", hint="Leave --uses out.", code="token_uses"
        )
    with Control(url, token=access_token(token), ca=ca) as control:
        if role is not None:
            made = control.role_token(role, population, name=name, ttl_s=expires)
            whose = f"A token of the role {role} for {population or 'all populations'}"
        else:
            made = control.enrolment_token(str(population), uses=uses, ttl_s=expires, name=name)
            whose = f"A token to join {population}"
    output.event("token", **made.model_dump(mode="json"))
    output.say(f"{whose} ({made.id}); keep it secret:")
    output.say(f"  {made.token}")


@app.command("revoke")
def revoke(
    identifier: Annotated[str, typer.Argument(metavar="TOKEN", help="A token's id, or the id's end.")],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Make a token useless for ever. Devices that have joined with it stay; `coterie devices revoke` shuts one out."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        found = [view for view in control.tokens() if view.id == identifier or view.id.endswith(identifier)]
        if len(found) != 1:
            what = f"There is no token {identifier[:64]!r}" if not found else f"{len(found)} tokens end like this"
            raise NotFound(f"{what}.", hint="`coterie tokens list` shows their ids.", code="token_unknown")
        control.revoke_token(found[0].id)
    output.event("token", **{**found[0].model_dump(mode="json"), "revoked": True})
    output.say(f"Token {found[0].id} is revoked. Devices that have joined with it stay.")
