"""`coterie party`: an organisation in a session: joins, pins its partners' keys, sends and receives."""

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.jobs import job_lines
from coterie.cli.output import JsonOption, Output, size
from coterie.cli.places import HOME, AuthorityOption, file_to_write
from coterie.errors import InputError

if TYPE_CHECKING:
    from coterie.client_sdk.party.party import Party, Session
    from coterie.client_sdk.party.pins import Stranger

app = typer.Typer(help="Take a role in a session; send and receive messages that only the partner can read.")
StoreOption = Annotated[Path, typer.Option("--store", help="The folder of this party's keys, pins and messages.")]
SessionOption = Annotated[
    str | None, typer.Option("--session", help="A session's id or its end (default: the only one joined).")
]
StageOption = Annotated[str | None, typer.Option("--stage", help="The stage (default: the session's only one).")]
FirstUseOption = Annotated[
    bool, typer.Option("--trust-first-use", help="Pin the key that a partner shows first, without asking.")
]
WaitOption = Annotated[
    float | None, typer.Option("--wait", min=0, help="Seconds to wait for the partner (default: no limit).")
]
TableArgument = Annotated[
    Path, typer.Argument(metavar="TABLE", help="A file .csv, .csv.gz, .npz or .parquet, with names of columns.")
]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="The partner's role.")]
FOLDER = HOME / "party"


@app.callback()
def party() -> None:
    """A party keeps its key, its pins and what it sends in a folder of its own (--store), one process at a time."""


@contextmanager
def open_party(store: Path, output: Output, ca: Path | None, *, trusts_first_use: bool = False) -> Generator["Party"]:
    """The party of a folder, which asks on a terminal before it pins a key."""
    from coterie.client_sdk.party.party import Party

    def judge(stranger: "Stranger") -> bool:
        output.say(f"{stranger.partner} (role {stranger.role}) shows a key for the first time. Its fingerprint:")
        output.say(f"  {stranger.fingerprint}")
        if trusts_first_use:
            output.say("It is pinned, since --trust-first-use says so.")
            return True
        if not sys.stdin.isatty():
            return False
        return typer.confirm("Has the partner confirmed this fingerprint over another channel? Pin it", err=True)

    def report_event(event: dict[str, Any]) -> None:
        output.event(**event)
        match event["event"]:
            case "waiting":
                output.say(f"Waiting for the key of {event['partner']} (role {event['role']}).")
            case "paused":
                output.say(f"Paused: {event['message']}")
            case _:
                pass

    with Party(store, judge=judge, ca=ca, on_event=report_event) as found:
        yield found


def _stage(session: "Session", stage: str | None) -> str:
    first, *others = session.membership.terms.stages
    if stage is None and others:
        raise InputError(
            f"Session {session.membership.name} has several stages.",
            hint=f"Say which one: --stage {' or --stage '.join((first, *others))}.",
            code="stage_unknown",
        )
    return stage or first


@app.command("join")
def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The coordinator's address.")],
    token: Annotated[
        str, typer.Option("--token", envvar="COTERIE_PARTY_TOKEN", help="The token of this party's role.")
    ],
    pin: Annotated[
        list[str] | None, typer.Option("--pin", metavar="PARTY=FINGERPRINT", help="A partner's key, known beforehand.")
    ] = None,
    store: StoreOption = FOLDER,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Take a role in a session, and show this party's fingerprint for its partners to compare. May be repeated."""
    output = Output(json)
    with open_party(store, output, ca) as party:
        for text in pin or ():
            partner, _, told = text.rpartition("=")
            party.pins.pin(partner, told)
        session = party.join(url, token)
        own = session.membership
        mark = party.fingerprint
    others = [role for role in own.terms.roles if role.name != own.role]
    output.event(
        "joined",
        session=own.session,
        name=own.name,
        role=own.role,
        party=own.party,
        url=url,
        stages=own.terms.stages,
        job=None if own.terms.job is None else own.terms.job.model_dump(mode="json"),
        partners={role.name: role.party for role in others},
        fingerprint=mark,
    )
    output.say(f"Joined {own.name} ({own.session}) as {own.role}. Stages: {', '.join(own.terms.stages)}.")
    output.say(f"Partners: {', '.join(f'{role.party} (role {role.name})' for role in others)}.")
    for line in job_lines(own.terms):
        output.say(line)
    output.say("Tell them this fingerprint over a channel other than the coordinator:")
    output.say(f"  {mark}")


@app.command("show")
def show(store: StoreOption = FOLDER, json: JsonOption = False) -> None:
    """Show this party's fingerprint, the partners that are pinned, and the sessions that were joined."""
    output = Output(json)
    with open_party(store, output, None) as party:
        mark, pins, joined = party.fingerprint, party.pins.all(), party.memberships()
    output.event("party", fingerprint=mark, pins=pins, sessions=[each.session for each in joined])
    output.say(f"fingerprint: {mark}")
    output.table(("partner", "pinned fingerprint"), [*pins.items()], empty="No partner is pinned.")
    output.table(
        ("session", "name", "role", "url"),
        [(each.session, each.name, each.role, each.url) for each in joined],
        empty="No session; `coterie party join` takes a role in one.",
    )


@app.command("pin")
def pin(
    partner: Annotated[str, typer.Argument(metavar="PARTY", help="The partner's name, as the session says it.")],
    fingerprint: Annotated[str, typer.Argument(metavar="FINGERPRINT", help="What the partner's `party show` prints.")],
    store: StoreOption = FOLDER,
    json: JsonOption = False,
) -> None:
    """Pin a partner's key by its fingerprint, in place of an earlier one."""
    output = Output(json)
    with open_party(store, output, None) as party:
        found = party.pins.pin(partner, fingerprint)
    output.event("pinned", partner=partner, fingerprint=found)
    output.say(f"The key of {partner} is pinned: {found}")


@app.command("send")
def send(
    role: RoleArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to send; - for standard input.")],
    stage: StageOption = None,
    session: SessionOption = None,
    trust_first_use: FirstUseOption = False,
    wait: WaitOption = None,
    store: StoreOption = FOLDER,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Send a file to the partner in a role, sealed for it alone. What an earlier command could not send goes first."""
    output = Output(json)
    body = _standard_input() if str(file) == "-" else file
    if isinstance(body, Path) and not body.is_file():
        raise InputError(f"There is no file {body}.", hint="Check the path.", code="file_unusable")
    with open_party(store, output, ca, trusts_first_use=trust_first_use) as party:
        joined = party.session(session)
        where = _stage(joined, stage)
        joined.resume(patience_s=wait)
        receipt = joined.send(where, role, body, patience_s=wait)
    output.event("sent", stage=where, role=role, **receipt.model_dump(mode="json"))
    output.say(f"Message {receipt.sequence} to {role} in stage {where} is at the coordinator, sealed.")


def _standard_input() -> Iterator[bytes]:
    while piece := sys.stdin.buffer.read(1 << 20):
        yield piece


@app.command("receive")
def receive(
    role: RoleArgument,
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write it; an existing file is not overwritten.")
    ],
    stage: StageOption = None,
    session: SessionOption = None,
    trust_first_use: FirstUseOption = False,
    wait: WaitOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    store: StoreOption = FOLDER,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Receive the next message from the partner in a role into a file. It is acknowledged when the file is whole."""
    from coterie.protocol.files import sync_folder

    output = Output(json)
    place = file_to_write(out)
    if place.exists() and not force:
        raise InputError(f"{place} already exists.", hint="Name another file, or give --force.", code="file_unusable")
    with open_party(store, output, ca, trusts_first_use=trust_first_use) as party:
        joined = party.session(session)
        where = _stage(joined, stage)
        message = joined.receive(where, role, patience_s=wait)
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.part")
        count = 0
        with part.open("wb") as file:
            for chunk in joined.chunks(message):
                count += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
        sync_folder(place.absolute().parent)
        joined.acknowledge(message, patience_s=wait)
    output.event("received", stage=where, role=role, sequence=message.sequence, bytes=count, path=str(place))
    output.say(f"Message {message.sequence} from {role} in stage {where}: {size(count)} in {place}.")


@app.command("report")
def report(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write.")] = None,
    session: SessionOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    store: StoreOption = FOLDER,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Say what this party told and was told in a session, and sign it. Also when the session is over."""
    from coterie.cli.learned import show_learned
    from coterie.protocol.files import write_durably

    output = Output(json)
    place = None if out is None else file_to_write(out)
    if place is not None and place.exists() and not force:
        raise InputError(f"{place} already exists.", hint="Name another file, or give --force.", code="file_unusable")
    with open_party(store, output, ca) as party:
        made = party.report(session)
    show_learned(output, (made,))
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_durably(place, made.to_bytes())
    output.event(
        "session_report",
        session=made.terms.session,
        role=made.role,
        party=made.party,
        state=made.state,
        reason=made.reason,
        path=None if place is None else str(place),
    )
    output.say(f"Report of {made.party} (role {made.role}) on session {made.name}: {_STATES[made.state]}.")
    if place is not None:
        output.say(f"It is in {place}, signed. `coterie audit session` compares it with that of a partner.")


_STATES = {
    "open": "the session goes on, so more may follow",
    "ended": "the session is over",
    "unknown": "the coordinator could not be asked whether the session is over",
}
