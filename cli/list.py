"""`coterie list`: what a coordinator has."""

from enum import StrEnum
from typing import Annotated

import typer

from coterie.cli.output import JsonOption, Output, short_id
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token


class What(StrEnum):
    """The things that can be listed."""

    EXPERIMENTS = "experiments"
    POPULATIONS = "populations"
    DEVICES = "devices"


# What to list → its columns, fields of the listed messages, and what to do where there is none.
COLUMNS: dict[What, tuple[tuple[str, ...], str]] = {
    What.EXPERIMENTS: (
        ("name", "state", "round", "population", "id", "created_at"),
        "No experiment yet. Start one: coterie submit experiment.py",
    ),
    What.POPULATIONS: (
        ("name", "devices", "schema_digest", "created_at"),
        "No population yet. The first `coterie submit` makes one.",
    ),
    What.DEVICES: (
        ("id", "name", "population", "state", "accepted", "failed", "failure", "last_seen_at"),
        "No device yet. `coterie submit` prints the command with which one joins.",
    ),
}


def list_(
    what: Annotated[What, typer.Argument(help="What to list.")] = What.EXPERIMENTS,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """List the experiments, populations or devices of a coordinator."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        match what:
            case What.EXPERIMENTS:
                items = control.experiments()
            case What.POPULATIONS:
                items = control.populations()
            case What.DEVICES:
                items = control.devices()
    columns, empty = COLUMNS[what]
    rows = [item.model_dump(mode="json") for item in items]
    for row in rows:
        output.event(what.value.removesuffix("s"), **row)
    output.table(columns, [[short(column, row.get(column)) for column in columns] for row in rows], empty=empty)


def short(column: str, value: object) -> object:
    """A cell for people: the start of an id, which is unique, and times to the minute."""
    match column:
        case "id":
            return short_id(str(value))
        case "schema_digest":
            return str(value)[:12]
        case "created_at" | "last_seen_at" if value is not None:
            return str(value)[:16].replace("T", " ")
        case _:
            return value
