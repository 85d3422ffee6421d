"""`coterie audit`: hold privacy claims, and the trail of what was done, against what can be proven of them. Fails when
a claim is refuted, and in another way when the audit could not have refuted it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coterie.cli.audit_session import audit_session
from coterie.cli.failures import CANNOT_TELL, FAILED
from coterie.cli.output import JsonOption, Output, figure
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.errors import ExperimentError

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment
    from coterie.privacy.audit.one_run import Audit
    from coterie.privacy.audit.verdict import Verdict
    from coterie.simulation.canaries import CanaryAudit

app = typer.Typer(help="Audit privacy claims, the trail of administrative actions and reports of sessions.")

FileArgument = Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="The file that makes the experiment.")]
ClientsOption = Annotated[str, typer.Option(help="The name in FILE that holds, or returns, each client's data.")]
RoundsOption = Annotated[int | None, typer.Option(min=1, help="Rounds to run, instead of the experiment's own.")]
ClaimOption = Annotated[float | None, typer.Option(min=0.0, help="The epsilon to test.")]
TrainerOption = Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="A trainer of your own.")]
WorkersOption = Annotated[int, typer.Option(min=1, help="Number of clients that train in parallel.")]


@app.command("statement")
def statement(target: FileArgument, rounds: RoundsOption = None, json: JsonOption = False) -> None:
    """Say what the experiment's differential privacy promises, to whom, and what it assumes."""
    from coterie.aggregation.compiling.compile import compile_plan
    from coterie.aggregation.promises.claims import claim_of
    from coterie.cli.loading import load_experiment, override
    from coterie.protocol.conversion import to_json

    output = Output(json)
    experiment = override(load_experiment(target)[0], rounds=rounds)
    found = claim_of(experiment, length=compile_plan(experiment).plan.manifest.layout.size)
    if found is None:
        raise ExperimentError(
            f"Experiment {experiment.name!r} has no differential privacy, so there is no statement to print.",
            hint="Give Experiment(privacy=...) a UserLevel, for example.",
            code="audit_nothing",
        )
    output.event("statement", **to_json(found))
    for line in found.lines():
        output.say(line)


@app.command("trail")
def trail(
    digest: Annotated[str | None, typer.Option(help="A digest noted earlier: the trail must still contain it.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """List who did what on the coordinator, and check here that no entry was changed, moved or left out.

    Exits with 1 where the trail does not hold, and names the entry.
    """
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.audit import first_fault

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        entries = control.audit_trail()
    for entry in entries:
        output.event("action", **entry.model_dump(mode="json"))
    output.table(
        ("id", "at", "by", "action", "of"),
        [
            (entry.id, f"{entry.at:%Y-%m-%d %H:%M:%S}", entry.actor, entry.action, entry.subject or "")
            for entry in entries
        ],
        empty="No action is recorded yet.",
    )
    broken = first_fault(entries)
    fault = None if broken is None else f"entry {broken[0]}: {broken[1]}"
    if fault is None and digest is not None and digest not in {entry.digest for entry in entries}:
        fault = f"no entry has the digest {digest[:64]}: the trail was rewritten or truncated"
    newest = entries[-1].digest if entries else None
    output.event("trail", entries=len(entries), digest=newest, fault=fault)
    if fault is not None:
        output.say(f"The audit trail is not valid: {fault}.")
        raise typer.Exit(FAILED)
    output.say(f"All {len(entries)} entries are valid. Note the newest digest, and pass it next time:")
    output.say(f"  coterie audit trail --digest {newest}")


@app.command("run")
def run(
    target: FileArgument,
    clients: ClientsOption = "clients",
    count: Annotated[
        int | None, typer.Option("--canaries", min=20, help="Number of canaries (default: as many as the claim needs).")
    ] = None,
    norm: Annotated[
        float | None,
        typer.Option(min=0.0, help="Norm of a canary's update (default: ten times the experiment's clip)."),
    ] = None,
    claim: Annotated[
        float | None, typer.Option(min=0.0, help="The epsilon to test (default: the experiment's own).")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the claim, if the experiment has none.")] = 1e-5,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds to run (default: as many as the audit needs).")
    ] = None,
    trainer: TrainerOption = None,
    workers: WorkersOption = 1,
    json: JsonOption = False,
) -> None:
    """Simulate the experiment with canary clients, look for them in its rounds, and bound epsilon from below."""
    from coterie.cli.rounds import RoundTable
    from coterie.cli.simulate import show
    from coterie.protocol.conversion import to_json
    from coterie.simulation.canaries import audit_by_canaries

    output = Output(json)
    experiment, sources = _load_experiment_and_clients(target, clients, None)
    with RoundTable(output, f"{experiment.name}, with canaries") as table:
        found = audit_by_canaries(
            experiment,
            sources,
            canaries=count,
            rounds=rounds,
            norm=norm,
            delta=delta,
            claimed=claim,
            trainer=trainer,
            workers=workers,
            on_event=lambda event: show(table, event),
        )
    output.event("audit", **to_json(found))
    for line in _lines(found):
        output.say(line)
    _report_and_exit(output, found.verdict, found.claimed, found.because)


@app.command("guesses")
def guesses(
    count: Annotated[int, typer.Option("--canaries", min=1, help="Number of canaries, each included at random.")],
    guessed: Annotated[int, typer.Option("--guesses", min=1, help="Number of canaries guessed.")],
    correct: Annotated[int, typer.Option(min=0, help="Number of correct guesses.")],
    delta: Annotated[float, typer.Option(help="Delta of the claim.")] = 1e-5,
    claim: ClaimOption = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    json: JsonOption = False,
) -> None:
    """Bound epsilon from the guesses of one run (Steinke, Nasr and Jagielski, 2023)."""
    from coterie.privacy.audit.one_run import audit_guesses
    from coterie.protocol.conversion import to_json

    output = Output(json)
    found = audit_guesses(count, guessed, correct, delta, claimed=claim, confidence=confidence)
    output.event("audit", **to_json(found))
    output.say(f"{_describe_guesses(found)}, with {confidence:.0%} confidence.")
    output.say(f"The highest epsilon that this audit could have found: {found.cap:.4g}.")
    _report_and_exit(output, found.verdict, claim, None)


@app.command("members")
def members(
    target: FileArgument,
    clients: ClientsOption = "clients",
    rows: Annotated[int, typer.Option(min=8, help="The most rows of each kind.")] = 400,
    claim: ClaimOption = None,
    rounds: RoundsOption = None,
    trainer: TrainerOption = None,
    workers: WorkersOption = 1,
    json: JsonOption = False,
) -> None:
    """Simulate the experiment, and tell by their losses rows that it was trained on from rows held out."""
    from coterie.cli.rounds import RoundTable
    from coterie.cli.simulate import show
    from coterie.protocol.conversion import to_json
    from coterie.simulation import simulate_full
    from coterie.simulation.members import infer_members

    output = Output(json)
    experiment, sources = _load_experiment_and_clients(target, clients, rounds)
    with RoundTable(output, f"{experiment.name}: {len(sources)} virtual clients") as table:
        result = simulate_full(
            experiment, sources, trainer=trainer, workers=workers, on_event=lambda event: show(table, event)
        )
    found = infer_members(result, experiment, sources, rows=rows, trainer=trainer)
    verdict = found.verdict(claim)
    output.event("members", **to_json(found), claimed=claim, verdict=verdict)
    output.say(
        f"{found.members} rows that were trained on, {found.outsiders} that were not: area under the curve "
        f"{figure(found.auc, 3)} (0.5 is blind); {found.true_positive_rate:.1%} found at 1 % of mistakes; epsilon is "
        f"at least {figure(found.epsilon, 3)} for a row."
    )
    output.say(f"The highest epsilon that this audit could have found: {found.cap:.4g}.")
    if claim is not None:
        _report_and_exit(output, verdict, claim, None)


def _lines(audit: "CanaryAudit") -> Iterator[str]:
    """What was seen, in sentences."""
    marks, guesses = audit.marks, audit.guesses
    if guesses is not None:
        yield f"{audit.canaries} canaries, {audit.rounds} rounds."
    if marks is not None:
        yield (
            f"Their marks are {marks.ratio:.3f} standard deviations above the noise. If the noise is Gaussian, "
            "epsilon is at "
            f"least {figure(marks.epsilon)} at delta {marks.delta:g}, with {marks.confidence:.1%} confidence."
        )
    if guesses is not None:
        yield f"Whatever the noise is: {_describe_guesses(guesses)}, with {guesses.confidence:.1%} confidence."
        yield f"The highest epsilon that this audit could have found: {audit.cap:.4g}."
    if marks is not None and marks.power is not None:
        yield f"Noise of half the size would have been caught with a chance of {marks.power:.1%}."


def _describe_guesses(audit: "Audit") -> str:
    return (
        f"{audit.correct} of {audit.guesses} guesses about {audit.canaries} canaries are right, so that epsilon is at "
        f"least {figure(audit.epsilon)} at delta {audit.delta:g}"
    )


def _report_and_exit(output: Output, verdict: "Verdict | None", claimed: float | None, because: str | None) -> None:
    """Say what the answer is, and leave with an exit code that says it too."""
    claim = "what the experiment claims" if claimed is None else f"the claim of epsilon {claimed:.4g}"
    match verdict:
        case None:
            output.say("Nothing was claimed; give --claim, or let the experiment ask for differential privacy.")
        case "not refuted":
            output.say(f"NOT REFUTED: {claim} stands for now; an audit can never prove one.")
        case "refuted":
            output.say(f"REFUTED: {claim} is false. Look for noise that was left out, or a clip that does not hold.")
            raise typer.Exit(FAILED)
        case "cannot tell":
            why = because or "it is above the highest epsilon that could have been found"
            output.say(f"CANNOT TELL: the audit says nothing about {claim}: {why}.")
            raise typer.Exit(CANNOT_TELL)


def _load_experiment_and_clients(target: str, clients: str, rounds: int | None) -> "tuple[Experiment, Sequence[Any]]":
    from coterie.cli.loading import call, load_experiment, override, split_target

    experiment, module = load_experiment(target)
    shards = call(module, split_target(target)[0], clients)
    if not isinstance(shards, Sequence) or isinstance(shards, str):
        raise ExperimentError(
            f"{target}: `{clients}` is a {type(shards).__name__}, not a sequence with each client's data.",
            hint='For example: clients = ["data/site-1.csv", "data/site-2.csv"]',
            code="experiment_file",
        )
    return override(experiment, rounds=rounds), cast(Sequence[Any], shards)


app.command("session")(audit_session)
