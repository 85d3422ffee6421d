"""`coterie populations`: making one, and whose plans its devices run."""

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.joining import again
from coterie.cli.output import JsonOption, Output
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.errors import InputError

app = typer.Typer(help="Make populations, and accept researchers' keys.")


@app.callback()
def populations() -> None:
    """Make populations, and accept researchers' keys; `coterie list populations` shows them."""


@app.command("schema")
def schema(
    target: Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="The file that makes the experiment.")],
    json: JsonOption = False,
) -> None:
    """Print the schema of an experiment's data as JSON, for the operator who makes its population."""
    from coterie.cli.loading import load_experiment
    from coterie.protocol.conversion import to_json

    output = Output(json)
    found = to_json(load_experiment(target)[0].schema)
    output.event("schema", schema=found)
    output.say(json_text.dumps(found, indent=2))


@app.command("make")
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the population: one lower-case word.")],
    file: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The schema of its devices' data, as JSON.")],
    signer: Annotated[
        list[str] | None, typer.Option(help="A researcher's public key whose plans its devices run (repeatable).")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Make a population for a schema of data, or show the one of this name and schema."""
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.schema import DataSchema

    output = Output(json)
    wanted = DataSchema.from_json(_read(file))
    with Control(url, token=access_token(token), ca=ca) as control:
        view = control.ensure_population(name, wanted, signers=signer or ())
    output.event("population", **view.model_dump(mode="json"))
    output.say(f"Population {view.name} accepts plans of {len(view.signers)} keys and has {view.devices} devices.")
    way = again(url, ca)
    output.say(f"Accept a researcher's key: coterie populations allow {view.name} KEY{way}")
    output.say(f"Devices join with a token: coterie tokens make --population {view.name}{way}")


@app.command("allow")
def allow(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The population.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The researcher's public key, 64 hexadecimal digits.")],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Accept plans that a researcher's key has signed. Devices that have joined keep to the keys that they know."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        view = control.allow_signer(name, key)
    output.event("population", **view.model_dump(mode="json"))
    output.say(f"Population {view.name} accepts plans of {len(view.signers)} keys, {key[:16]}… among them.")


def _read(path: Path) -> Any:
    try:
        return json_text.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json_text.JSONDecodeError) as error:
        raise InputError(
            f"{path} is not valid JSON: {error}.",
            hint="`coterie populations schema experiment.py` prints the schema of an experiment as JSON.",
            code="file_unusable",
        ) from None
