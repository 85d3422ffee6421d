"""`coterie client`: a device that trains on its own data."""

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.failures import INTERRUPTED
from coterie.cli.output import JsonOption, Output, figure, short_id, size
from coterie.cli.places import HOME, AuthorityOption
from coterie.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from coterie.client_sdk.device.device import Device, DryRun
    from coterie.client_sdk.device.policy import DevicePolicy
    from coterie.client_sdk.device.trainers.base import Trainer

MEBIBYTE = 1024 * 1024
# A shorter wait is not worth a line.
LONG_WAIT_S = 5.0

# What a client says once when there is nothing to do, by the reason.
IDLE: Mapping[str, str] = {
    "no_experiment": "No experiment runs in this population; asking again, once a minute after a while.",
    "no_place": "An experiment runs, but its rounds have no place for this client now; it keeps asking.",
    "trainer_own": "The experiment that runs needs a trainer of your own, and this client has none: "
    "start it again with --trainer MODULE:OBJECT. Until then it asks once a minute.",
    "trainer_plan": "The experiment that runs brings its own training step, which a client with --trainer does not "
    "run: start it again without --trainer. Until then it asks once a minute.",
    "secrecy": "The experiment that runs needs a kind of secure aggregation that this version does not support: "
    "update coterie.",
    "features": "The experiment that runs needs a feature that this client does not have: update coterie.",
}

# What other commands keep in .coterie (docs/cli.md).
_TAKEN = frozenset({"server", "keys", "simulations", "reports", "demo"})


def client(
    url: Annotated[str, typer.Argument(metavar="URL", help="The coordinator's address, as in http://127.0.0.1:8765.")],
    data: Annotated[
        str, typer.Option(help="This client's rows: a folder, a .csv, a .npz, or module:function in Python.")
    ],
    token: Annotated[
        str | None, typer.Option(envvar="COTERIE_ENROL_TOKEN", help="The enrolment token; needed only the first time.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of this client's store, so that one folder can hold several.")
    ] = "client",
    store: Annotated[
        Path | None, typer.Option(help="Where the client keeps its key and history (default: ./.coterie/NAME).")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="A TOML file that says what this client takes part in."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that training may use (default: 1).")] = None,
    memory_mb: Annotated[int | None, typer.Option(min=1, help="Memory that training may use, in MiB.")] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Where to train: cpu (default), auto (the fastest that passes the checks), or a provider."),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            help="Processes that share a training: data(1) (default), data(2), pipeline(2), or auto (if quicker)."
        ),
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help="module:object of your own trainer, for a plan that leaves training to you.")
    ] = None,
    reveal_data: Annotated[
        bool,
        typer.Option("--reveal-data", help="Tell the coordinator how many rows and which classes this client has."),
    ] = False,
    endorsement: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An issuer's endorsement of this client's key; needed only the first time."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit after one contribution is settled.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would leave this machine; send nothing.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --dry-run: a new folder for the exact bytes that would leave."),
    ] = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Join a population and train on local data. The data stays here; --dry-run shows what would leave.
    `coterie client history` tells what it did, `coterie client withdraw` leaves for good.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads or 1))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads or 1))
    from coterie.client_sdk.device.device import Device
    from coterie.protocol.conversion import to_json

    output = Output(json)
    if save is not None and not dry_run:
        raise InputError("--save needs --dry-run.", hint="Add --dry-run, or leave out --save.", code="usage")
    floor = policy_of(
        policy, threads=threads, memory_mb=memory_mb, reveal_data=reveal_data, provider=provider, parallel=parallel
    )
    own: Trainer | None = _own_trainer(trainer) if trainer else None
    device = Device(
        url,
        data=data,
        folder=store or store_of(name),
        token=token,
        name=name,
        trainer=own,
        policy=floor,
        ca=ca,
        endorsement=endorsement,
        on_event=Teller(output),
    )
    with device:
        if dry_run:
            show(output, device.dry_run(save))
            return
        _stop_on_signals(device, output)
        summary = to_json(device.run(rounds=1 if once else None))
    output.event("summary", **summary)
    output.say(
        f"Trained {summary['trained']} tasks, {summary['counted']} counted; "
        f"sent {size(summary['bytes_up'])}, received {size(summary['bytes_down'])}."
    )


def store_of(name: str) -> Path:
    """The store of a client that names none. Its name is one plain word, and none that a folder beside it has."""
    if name in _TAKEN or not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(
            f"--name {name!r} cannot name a store: it must be one word of letters, digits, '-', '_' and '.', and "
            "not one of "
            f"{', '.join(sorted(_TAKEN))}.",
            hint="Choose another, as in --name site-1, or name the store's folder with --store DIR.",
            code="usage",
        )
    return HOME / name


@dataclass
class Teller:
    """Says what the device does; the same failure again is no news until something else has happened, nor is a training
    whose plan was introduced. Each question is.
    """

    output: Output
    _failure: object = None
    _plans: set[object] = field(default_factory=set[object])

    def __call__(self, event: Mapping[str, Any]) -> None:
        failed = event["event"] == "error"
        known = event["event"] == "plan" and not event["asks"] and event["plan"] in self._plans
        if self.output.json or not (known or (failed and event["message"] == self._failure)):
            tell(self.output, event)
        if event["event"] == "plan":
            self._plans.add(event["plan"])
        if failed:
            self._failure = event["message"]
        elif event["event"] != "waiting":
            self._failure = None


def tell(output: Output, event: Mapping[str, Any]) -> None:
    """Say one thing that the device did."""
    facts = dict(event)
    kind = str(facts.pop("event"))
    output.event(kind, **facts)
    match kind:
        case "joined":
            output.say(f"Joined {facts['population']} with {facts['examples']} rows. Ctrl-C leaves.")
        case "task":
            output.say(f"Round {facts['round']} of {short_id(str(facts['experiment']))}: {facts['kind']}")
        case "plan":
            output.say(f"  {purpose(facts)}, signed by {facts['signer']}")
        case "trained":
            output.say(f"  trained {facts['steps']} steps in {facts['seconds']:.2f} s")
        case "released":
            output.say(
                f"  released so far: epsilon {figure(facts['epsilon'])} of {figure(facts['most'])}, "
                f"delta {facts['delta']:g}"
            )
        case "uploaded":
            output.say(f"  sent {size(facts['bytes'])}: {facts['state']}")
        case "sent" if facts["message"] == "shares":
            output.say(f"  secure aggregation with {facts['clients']} clients")
        case "sent" if facts["message"] == "reveal":
            output.say(f"  helped to open the sum of {facts['survivors']} clients, and only that")
        case "attempt" if facts["state"] != "summed":
            output.say(f"  no sum was opened: {facts['cause'] or facts['state']}")
        case "provider" if facts["state"] == "failed":
            output.say(f"  {facts['provider']} failed, the CPU goes on from the same state: {facts['reason']}")
        case "provider" if facts["state"] == "refused":
            output.say(f"  {facts['provider']} does not take a graph, which the CPU runs: {facts['reason']}")
        case "provider" if facts["state"] == "chosen":
            times = ", ".join(f"{name} {s * 1000:.2f} ms" for name, s in facts["seconds"].items())
            output.say(f"  trains on {facts['provider']}; a step took {times}")
        case "provider":
            output.say(
                f"  {facts['provider']} is {facts['state']}" + (f": {facts['reason']}" if "reason" in facts else "")
            )
        case "parallel" if facts["state"] == "chosen":
            times = ", ".join(f"{count}: {s * 1000:.2f} ms" for count, s in facts.get("seconds", {}).items())
            took = f"; a step took {times}" if times else ""
            output.say(f"  each step is made by {facts['processes']} process(es){took}")
        case "parallel":
            output.say(f"  one process makes the steps: {facts['reason']}")
        case "state_dropped":
            output.say("  begins without what the method kept: it was made in another history of versions")
        case "settled":
            output.say(f"  settled: {facts['outcome']}")
        case "idle":
            output.say(IDLE[facts["reason"]])
        case "waiting" if facts["seconds"] >= LONG_WAIT_S and facts.get("reason") not in IDLE:
            output.say(f"  asking again in {facts['seconds']:.0f} s")
        case "refused" | "error" | "unusable":
            output.say(f"  {kind}[{facts['code']}]: {facts['message']} {facts.get('hint') or ''}".rstrip())
        case _:
            pass


def purpose(facts: Mapping[str, Any]) -> str:
    """What a task is for: a question by its name and kind, or training."""
    asks = facts["asks"]
    return f"asks a question, {facts['name']!r} ({asks})" if asks else f"trains {facts['name']!r}"


def show(output: Output, dry: "DryRun") -> None:
    """What a dry run found: section by section, what would leave."""
    from coterie.protocol.conversion import to_json

    output.event("dry_run", **to_json(dry))
    if dry.saved:
        output.say("Saved, byte for byte:")
    for path in dry.saved:
        output.say(f"  {path}")
    if dry.experiment is None:
        output.say(dry.note)
        return
    where = f"Round {dry.round} of {short_id(dry.experiment)}"
    output.say(f"{where}: {purpose({'name': dry.name, 'asks': dry.asks})}, signed by {dry.signer}")
    output.say(f"{where} would send {size(dry.total_bytes)}, counted as {dry.weight} rows:")
    if dry.secure is not None:
        output.say(
            f"Secure aggregation ({dry.secure.replace('_', '-')}): only the sum over at least {dry.min_clients} clients"
            " is opened. Before masking:"
        )
    output.table(
        ("section", "codec", "values", "bytes", "from", "to", "norm"),
        [
            (s.name, s.codec, s.values, s.bytes, figure(s.minimum), figure(s.maximum), figure(s.norm))
            for s in dry.sections
        ],
        empty="No section at all.",
    )
    output.say(dry.note)


def policy_of(
    file: Path | None,
    *,
    threads: int | None = None,
    memory_mb: int | None = None,
    reveal_data: bool = False,
    provider: str | None = None,
    parallel: str | None = None,
) -> "DevicePolicy":
    """The policy of the file and the options together.

    Raises ConfigurationError for a file that cannot be used, or that says what an option says too.
    """
    from coterie.client_sdk.device.policy import DevicePolicy
    from coterie.client_sdk.device.policy_file import read_policy

    options: dict[str, tuple[str, Any]] = {
        "threads": ("--threads", threads),
        "memory_bytes": ("--memory-mb", None if memory_mb is None else memory_mb * MEBIBYTE),
        "reveal_data": ("--reveal-data", reveal_data or None),
        "provider": ("--provider", provider),
        "parallel": ("--parallel", parallel),
    }
    base = DevicePolicy() if file is None else read_policy(file)
    for name, (option, value) in options.items():
        if value is not None and base.source is not None and name in base.source.lines:
            raise ConfigurationError(
                f"{base.where(name)} and the option {option} both set it.",
                hint="Leave one of them out.",
                code="policy_conflict",
            )
    return replace(base, **{name: value for name, (_, value) in options.items() if value is not None})


def _own_trainer(entry: str) -> "Trainer":
    from coterie.cli.loading import entry_point

    return entry_point(entry)


def _stop_on_signals(device: "Device", output: Output) -> None:
    """The first Ctrl-C lets the running step end; the second leaves at once, which the local store survives."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, leave)
        signal.signal(signal.SIGTERM, leave)
        output.say("Stopping after this step; press Ctrl-C again to stop at once.")
        device.stop()

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
