"""`coterie sessions`: sessions of parties, as an operator makes, sees and ends them."""

from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.jobs import job_asked, job_lines
from coterie.cli.output import JsonOption, Output, short_id, size
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.errors import InputError, NotFound

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.session import PartyRole, SessionView

app = typer.Typer(help="Make, list, show and end sessions of parties.")
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, its end, or its name.")]
_MINUTE = 16
_COLUMNS = ("id", "name", "state", "parties", "waiting", "expires")


@app.callback()
def sessions() -> None:
    """Sessions join organisations that send one another messages; the coordinator can read none of them."""


@app.command("make")
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the session.")],
    role: Annotated[
        list[str], typer.Option("--role", metavar="ROLE=PARTY", help="A role and who takes it; two or more.")
    ],
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", help="Name of a stage, under which messages are sent (default: `messages`)."),
    ] = None,
    label_owner: Annotated[
        str | None,
        typer.Option("--label-owner", metavar="ROLE", help="The role that has the labels, of a session with a job."),
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="How a job learns: `trees` or `linear`.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="An option of the method; may be repeated."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="A,B,...", help="What the parties do (default: align,train,evaluate,predict)."),
    ] = None,
    message_limit: Annotated[
        int | None, typer.Option(min=1, help="Most bytes of one sealed message (default: 4 GiB).")
    ] = None,
    party_quota: Annotated[
        int | None, typer.Option(min=1, help="Most bytes that may wait for one party (default: 8 GiB).")
    ] = None,
    session_quota: Annotated[
        int | None, typer.Option(min=1, help="Most bytes that may wait for all parties (default: 16 GiB).")
    ] = None,
    message_ttl: Annotated[
        int | None, typer.Option(min=1, help="Seconds until an unread message expires (default: a week).")
    ] = None,
    expires: Annotated[
        int | None, typer.Option(min=1, help="Seconds until the session ends (default: 30 days).")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Make a session, and show the token of each role this once: the organisation that takes it joins with that."""
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.session import session_request

    output = Output(json)
    given = {
        "message_limit": message_limit,
        "party_quota": party_quota,
        "session_quota": session_quota,
        "message_ttl_s": message_ttl,
        "expires_s": expires,
        "stages": None if stage is None else tuple(stage),
        "job": job_asked(label_owner, method, setting or (), steps),
    }
    asked = {field: value for field, value in given.items() if value is not None}
    request = session_request({"name": name, "roles": tuple(map(_role, role)), **asked})
    with Control(url, token=access_token(token), ca=ca) as control:
        made = control.make_session(request)
    output.event("session", **made.model_dump(mode="json"))
    output.say(f"Session {made.name} ({made.id}) is open until {_expiry_minute(made)}.")
    for line in job_lines(made.terms):
        output.say(line)
    output.say("Give each party the line of its role over a safe way; a token is shown this once:")
    for place in made.terms.roles:
        output.say(f"  {place.party}:")
        output.say(f"    coterie party join {url} --token {made.tokens[place.name]}")


def _role(text: str) -> "PartyRole":
    from coterie.protocol.session import PartyRole

    name, equals, party = text.partition("=")
    if not equals or not party:
        raise InputError(
            f"--role {text[:80]!r} does not name the party that takes the role.",
            hint='Write it like --role label-owner="City Clinic".',
            code="session_invalid",
        )
    return PartyRole.model_construct(name=name.strip(), party=party.strip())


@app.command("list")
def list_sessions(
    url: UrlOption = DEFAULT_URL, token: TokenOption = None, ca: AuthorityOption = None, json: JsonOption = False
) -> None:
    """List the sessions of a coordinator."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        found = control.sessions()
    rows: list[tuple[object, ...]] = []
    for view in found:
        output.event("session", **view.model_dump(mode="json"))
        joined = sum(party.joined_at is not None for party in view.parties)
        state = view.state if view.reason is None else f"{view.state} ({view.reason})"
        joint = f"{joined} of {len(view.parties)} joined"
        rows.append((short_id(view.id), view.name, state, joint, view.messages, _expiry_minute(view)))
    output.table(_COLUMNS, rows, empty="No session; `coterie sessions make NAME --role ROLE=PARTY …` makes one.")


@app.command("show")
def show(
    session: SessionArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Show a session: who has joined, with which key, and what waits. The keys are this coordinator's word only."""
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.session import fingerprint

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        view = control.session(find_session(control, session).id)
    output.event("session", **view.model_dump(mode="json"))
    state = (
        view.state
        if view.reason is None
        else f"{view.state} ({view.reason}{': ' + view.detail if view.detail else ''})"
    )
    output.say(f"{view.name} ({view.id}): {state}, until {_expiry_minute(view)}")
    output.say(f"stages: {', '.join(view.terms.stages)}; {view.messages} messages wait")
    for line in job_lines(view.terms):
        output.say(line)
    output.table(
        ("role", "party", "joined", "last seen", "waiting of it", "fingerprint"),
        [
            (
                party.role,
                party.party,
                None if party.joined_at is None else f"{party.joined_at:%Y-%m-%d %H:%M}",
                None if party.last_seen_at is None else f"{party.last_seen_at:%Y-%m-%d %H:%M}",
                size(party.held_bytes),
                None if party.public_key is None else fingerprint(party.public_key),
            )
            for party in view.parties
        ],
        empty="No party.",
    )


@app.command("end")
def end(
    session: SessionArgument,
    detail: Annotated[str, typer.Option(help="Why, for the parties to read.")] = "",
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """End a session for all its parties. Messages that were not acknowledged are deleted, unused tokens revoked."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        view = control.end_session(find_session(control, session).id, detail)
    output.event("session", **view.model_dump(mode="json"))
    output.say(f"Session {view.name} ({view.id}) has ended.")


def find_session(control: "Control", text: str) -> "SessionView":
    """The one session that a text means. Raises NotFound (``session_unknown``) for none, or for several."""
    every = control.sessions()
    found = [each for each in every if text in (each.id, each.name)] or [
        each for each in every if each.id.endswith(text) or each.id.startswith(text)
    ]
    if len(found) == 1:
        return found[0]
    what = f"There is no session {text[:64]!r}" if not found else f"{len(found)} sessions are called {text[:64]!r}"
    raise NotFound(f"{what}.", hint="`coterie sessions list` shows their ids.", code="session_unknown")


def _expiry_minute(view: "SessionView") -> str:
    return view.expires_at.isoformat()[:_MINUTE].replace("T", " ")
