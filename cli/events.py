"""`coterie events`: what happened on a coordinator."""

from typing import Annotated, Any

import typer

from coterie.cli.output import JsonOption, Output, short_id
from coterie.cli.places import DEFAULT_URL, AuthorityOption, RunArgument, TokenOption, UrlOption, access_token


def events(
    run: RunArgument = None,
    after: Annotated[int | None, typer.Option(min=0, help="Skip events up to this number.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events until Ctrl-C.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Print the events of a coordinator, or of one experiment, the oldest first."""
    from coterie.cli.watch import find_run
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        experiment = None if run is None else find_run(control, run).id
        for event in control.events(experiment, after=after, follow=follow):
            told = event.model_dump(mode="json")
            output.event("happened", **told)
            if not json:
                at = str(told["at"])[:19].replace("T", " ")
                about = "" if event.experiment is None else f" {short_id(event.experiment)}"
                output.say(f"{event.id:>6}  {at}  {event.type}{about}  {_words(event.data)}".rstrip())


def _words(data: dict[str, Any]) -> str:
    """An event's own fields in one line: those that are a number or a word."""
    plain = {name: value for name, value in data.items() if isinstance(value, str | int | float) and value != ""}
    return "  ".join(f"{name}={_short(value)}" for name, value in plain.items())


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
