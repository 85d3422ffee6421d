"""`coterie stop`: end an experiment."""

from shlex import quote

from coterie.cli.output import Json, Output
from coterie.cli.places import DEFAULT_URL, Authority, RunArgument, Token, Url, admin_token


def stop(
    run: RunArgument = None, url: Url = DEFAULT_URL, token: Token = None, ca: Authority = None, json: Json = False
) -> None:
    """Stop an experiment: its open round is abandoned, its committed models stay."""
    from coterie.cli.watch import chosen
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=admin_token(token), ca=ca) as control:
        view = chosen(control, run).stop()
    output.event("stopped", experiment=view.id, name=view.name, state=view.state)
    output.say(f"{view.name} ({view.id}): {view.state}. Its models stay: coterie models list {quote(view.name)}")
