"""`coterie populations`: making one, and whose plans its devices run."""

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.output import Json, Output
from coterie.cli.places import DEFAULT_URL, Authority, Token, Url, admin_token
from coterie.errors import InputError

app = typer.Typer(help="Make populations, and accept researchers' keys.")


@app.callback()
def populations() -> None:
    """Make populations, and accept researchers' keys; `coterie list populations` shows them."""


@app.command("make")
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One word in small letters.")],
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="JSON of the schema of its devices' data.")],
    signer: Annotated[
        list[str] | None, typer.Option(help="A researcher's public key whose plans its devices run; again for more.")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    ca: Authority = None,
    json: Json = False,
) -> None:
    """Make a population for a schema of data, or show the one of this name and schema."""
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.schema import DataSchema

    output = Output(json)
    wanted = DataSchema.from_json(_read(schema))
    with Control(url, token=admin_token(token), ca=ca) as control:
        view = control.ensure_population(name, wanted, signers=signer or ())
    output.event("population", **view.model_dump(mode="json"))
    output.say(f"Population {view.name} has {len(view.signers)} signers and {view.devices} devices.")
    output.say(f"Devices join with a token: coterie tokens make --population {view.name}")


@app.command("allow")
def allow(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The population.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The researcher's public key, 64 hexadecimal digits.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    ca: Authority = None,
    json: Json = False,
) -> None:
    """Accept plans that a researcher's key has signed. Devices that have joined keep to the keys that they know."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=admin_token(token), ca=ca) as control:
        view = control.allow_signer(name, key)
    output.event("population", **view.model_dump(mode="json"))
    output.say(f"Population {view.name} accepts plans of {len(view.signers)} keys, {key[:16]}… among them.")


def _read(path: Path) -> Any:
    try:
        return json_text.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json_text.JSONDecodeError) as error:
        raise InputError(
            f"{path} cannot be read as JSON: {error}.",
            hint="`coterie prepare` and `DataSchema.to_json()` give a schema as JSON.",
            code="file_unusable",
        ) from None
