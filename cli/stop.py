"""`coterie stop`: end an experiment."""

from shlex import quote

from coterie.cli.output import JsonOption, Output, short_id
from coterie.cli.places import DEFAULT_URL, AuthorityOption, RunArgument, TokenOption, UrlOption, access_token
from coterie.errors import InputError


def stop(
    run: RunArgument = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Stop an experiment: its open round is abandoned, its committed models stay."""
    from coterie.cli.watch import find_run, running
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        going_on = [] if run is None else running(control, run)
        if len(going_on) > 1:
            raise InputError(
                f"{len(going_on)} experiments named {run!r} are running.",
                hint=f"Say which by its id, the newest first: {', '.join(short_id(view.id) for view in going_on)}.",
                code="experiment_ambiguous",
            )
        view = find_run(control, going_on[0].id if going_on else run).stop()
    output.event("stopped", experiment=view.id, name=view.name, state=view.state)
    output.say(f"{view.name} ({view.id}): {view.state}. Its models stay: coterie models list {quote(view.name)}")
