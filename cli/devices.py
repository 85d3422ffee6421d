"""`coterie devices`: who has joined, and shutting somebody out."""

from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.output import JsonOption, Output
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.errors import NotFound

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.control import DeviceView

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
    """Shut a device out for ever: its task ends, its requests are refused, and it cannot enrol again with its key."""
    output = Output(json)
    from coterie.client_sdk.control.control import Control

    with Control(url, token=access_token(token), ca=ca) as control:
        view = control.revoke(find_device(control, device).id)
    output.event("device", **view.model_dump(mode="json"))
    output.say(f"Device {view.name or view.id} ({view.id}) of population {view.population} is shut out.")


def find_device(control: "Control", text: str) -> "DeviceView":
    """The one device that a text means. Raises NotFound (``device_unknown``) for none, or for several."""
    every = control.devices()
    found = [each for each in every if text in (each.id, each.name)] or [
        each for each in every if each.id.startswith(text) or each.id.endswith(text)
    ]
    if len(found) == 1:
        return found[0]
    what = f"There is no device {text[:64]!r}" if not found else f"{len(found)} devices are called {text[:64]!r}"
    raise NotFound(f"{what}.", hint="`coterie list devices` shows their ids.", code="device_unknown")
