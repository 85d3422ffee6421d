"""`coterie devices`: revoking devices."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from coterie.cli.output import JsonOption, Output
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.errors import Conflict, NotFound

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.control import DeviceView

MOST_SHOWN: Final = 10
"""Of the ids that a refusal lists."""
app = typer.Typer(help="Revoke devices.")


@app.callback()
def devices() -> None:
    """Revoke devices; `coterie list devices` shows them."""


@app.command("revoke")
def revoke(
    device: Annotated[
        str, typer.Argument(metavar="DEVICE", help="A device's id, the beginning of the id, or its name.")
    ],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a device: its task ends, its requests are refused, and it cannot enrol again with its key."""
    output = Output(json)
    from coterie.client_sdk.control.control import Control

    with Control(url, token=access_token(token), ca=ca) as control:
        view = control.revoke(find_device(control, device).id)
    output.event("device", **view.model_dump(mode="json"))
    output.say(f"Device {view.name or view.id} ({view.id}) of population {view.population} is revoked.")


def find_device(control: "Control", text: str) -> "DeviceView":
    """The one device that a text means. Raises NotFound (``device_unknown``) for none, Conflict (``device_ambiguous``)
    for several.
    """
    every = control.devices()
    found = [each for each in every if text in (each.id, each.name)] or [
        each for each in every if each.id.startswith(text) or each.id.endswith(text)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(
            f"There is no device {text[:64]!r}.",
            hint="`coterie list devices` shows their ids.",
            code="device_unknown",
        )
    shown = ", ".join(each.id for each in found[:MOST_SHOWN])
    more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    raise Conflict(
        f"{text[:64]!r} means {len(found)} devices: {shown}{more}.",
        hint="Give one of these ids; `coterie list devices` shows whose they are.",
        code="device_ambiguous",
    )
