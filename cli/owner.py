"""`coterie client history`, `export` and `withdraw`: what an owner of data asks about a client on this machine."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coterie.cli.client import policy_of, store_of
from coterie.cli.output import JsonOption, Output, figure, short_id, size
from coterie.cli.places import AuthorityOption
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.client_sdk.device.history import HistoryEntry

NameOption = Annotated[str, typer.Option(help="The name of this client's store.")]
OwnStoreOption = Annotated[
    Path | None, typer.Option(help="Where the client keeps its history (default: ./.coterie/NAME).")
]
ENDS: Final = {
    "leased": "begun",
    "stored": "finished, not sent",
    "attempt": "finished, being summed",
    "pending": "sent",
    "reported": "sent",
    "counted": "sent, counted",
    "rolled_back": "sent, not counted",
    "failed": "given up",
}
_SENT: Final = frozenset(state for state, words in ENDS.items() if words.startswith("sent"))
_KEY: Final = 12


def history(
    name: NameOption = "client",
    store: OwnStoreOption = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="The client's policy, where it names a ledger or a delta."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what this client took part in, what left this machine, and what that released. It may go on meanwhile."""
    from coterie.client_sdk.device.record import read_record
    from coterie.client_sdk.device.spending import FILE, PrivacyLedger
    from coterie.protocol.conversion import to_json

    output, folder = Output(json), store or store_of(name)
    limits = policy_of(policy)
    record = read_record(folder)
    ledger = PrivacyLedger(limits.ledger or folder / FILE)
    member = record.membership
    for entry in record.history:
        output.event("took_part", **to_json(entry))
    released: list[dict[str, Any]] = []
    for experiment in ledger.experiments():
        total = ledger.total(limits.max_delta, experiment=experiment)
        told = {"releases": total.releases, "epsilon": total.epsilon, "delta": total.delta}
        released.append({"experiment": experiment, **told})
        output.event("release", **released[-1])
    everything = ledger.total(limits.max_delta)
    sent = [entry for entry in record.history if entry.state in _SENT]
    bytes_up = sum(entry.bytes_up for entry in sent)
    summary: dict[str, Any] = {
        "population": None if member is None else member.population,
        "url": None if member is None else member.url,
        "device": None if member is None else member.device_id,
        "tasks": len(record.history),
        "sent": len(sent),
        "counted": sum(entry.state == "counted" for entry in sent),
        "bytes_up": bytes_up,
        "epsilon": everything.epsilon,
        "delta": everything.delta,
    }
    output.event("summary", **summary)
    if member is None:
        output.say(f"The client of {folder} has not joined a population.")
        return
    output.say(f"Member of {member.population} at {member.url}, as {member.device_id}.")
    for entry in record.history:
        output.say(_line(entry))
    if not record.history:
        output.say("It has received no task yet.")
    else:
        output.say(
            f"{summary['tasks']} tasks, {summary['sent']} updates sent ({size(bytes_up)}), "
            f"{summary['counted']} counted. The last thousand are kept."
        )
    output.table(
        ("experiment", "releases", "epsilon"),
        [(short_id(row["experiment"]), row["releases"], figure(row["epsilon"])) for row in released],
        empty="No task promised differential privacy, so the record of releases is empty.",
    )
    if released:
        cost = f"epsilon {figure(everything.epsilon)} at delta {everything.delta:g}"
        output.say(f"Everything that {ledger.path} records: {cost}.")


def export(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="The experiment's name or id.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file to write.")],
    name: NameOption = "client",
    store: OwnStoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write this client's own model of an experiment as an ONNX file: the newest version that it worked on, with what
    it keeps of its own. It may go on meanwhile; nothing leaves this machine.
    """
    from coterie.client_sdk.device.export import export_model
    from coterie.protocol.files import make_folder, write_durably

    output, made = Output(json), export_model(store or store_of(name), experiment)
    make_folder(path.parent)
    write_durably(path, made.data)
    told = {"experiment": made.experiment, "round": made.round, "version": made.version, "personal": made.personal}
    output.event("own_model", path=str(path), bytes=len(made.data), **told)
    own = "with this client's own part" if made.personal else "the same for every client"
    output.say(f"Wrote {path} ({size(len(made.data))}): version {short_id(made.version)}, {own}.")


def withdraw(
    name: NameOption = "client",
    store: OwnStoreOption = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="The client's policy, where it names a ledger.")
    ] = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Leave the population for good: stop here, tell the coordinator, say what stays on disk. End the client first."""
    import asyncio

    from coterie.client_sdk.device.withdrawal import KEPT, stop_here, tell

    output, folder = Output(json), store or store_of(name)
    left = stop_here(folder, policy_of(policy).ledger)
    member = left.membership
    output.say(f"The client of {folder} no longer takes part in anything; its unsent work is removed.")
    output.say("On this disk stay:")
    for path in left.remaining_files:
        output.say(f"  {path}: {KEPT[path.name]}")
    output.say("Your rows were never moved. Updates that were sent stay in the models that they went into.")
    try:
        asyncio.run(tell(left, ca=ca))
    except CoterieError:
        output.say("The coordinator does not know it yet: run this command again when it can be reached.")
        raise
    output.event(
        "withdrawn",
        population=member.population,
        url=member.url,
        device=member.device_id,
        kept=[*map(str, left.remaining_files)],
    )
    output.say(f"Population {member.population} at {member.url} was notified: {member.device_id} has left.")


def _line(entry: "HistoryEntry") -> str:
    at = datetime.datetime.fromtimestamp(entry.at).strftime("%Y-%m-%d %H:%M")
    ended = ENDS[entry.state] + (f": {entry.detail}" if entry.detail else "")
    told = f"; {size(entry.bytes_up)}, seen by {_readers(entry)}" if entry.state in _SENT else ""
    return f"{at}  {_describe_task(entry)}, round {entry.round}, signed by {entry.signer[:_KEY]}: {ended}{told}"


def _describe_task(entry: "HistoryEntry") -> str:
    called = entry.name or short_id(entry.experiment)
    if entry.asks:
        return f"question: {called} ({entry.asks})"
    return f"{'evaluation' if entry.kind == 'evaluate' else 'training'}: {called}"


def _readers(entry: "HistoryEntry") -> str:
    """Who could read this device's own numbers."""
    clients = entry.survivors or entry.clients
    return f"only in the sum of {clients} clients" if entry.mode else "the coordinator"
