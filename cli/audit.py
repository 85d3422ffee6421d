"""`coterie audit`: hold a privacy claim against what can be proven of it. Fails when the claim does not hold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coterie.cli.failures import FAILED
from coterie.cli.output import Json, Output, figure
from coterie.errors import ExperimentError

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment
    from coterie.privacy.audit.one_run import Audit

app = typer.Typer(help="Hold a privacy claim against what can be proven of it.")

Target = Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="The file that makes the experiment.")]
Clients = Annotated[str, typer.Option(help="The name in FILE that holds, or returns, each client's data.")]
RoundsOption = Annotated[int | None, typer.Option(min=1, help="Rounds to run, instead of the experiment's own.")]
Claim = Annotated[float | None, typer.Option(min=0.0, help="The epsilon to hold against.")]
Trainer = Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="A trainer of your own.")]
Workers = Annotated[int, typer.Option(min=1, help="Clients that work at once.")]


@app.command("statement")
def statement(target: Target, rounds: RoundsOption = None, json: Json = False) -> None:
    """Say what the experiment's differential privacy promises, to whom, and what it assumes."""
    from coterie.aggregation.plan.compile import compile_plan
    from coterie.aggregation.private.claims import claim_of
    from coterie.cli.loading import load_experiment, override

    output = Output(json)
    experiment = override(load_experiment(target)[0], rounds=rounds)
    found = claim_of(experiment, length=compile_plan(experiment).plan.manifest.layout.size)
    if found is None:
        raise ExperimentError(
            f"Experiment {experiment.name!r} asks for no differential privacy, so there is nothing to state.",
            hint="Give Experiment(privacy=...) a UserLevel, for example.",
            code="audit_nothing",
        )
    output.event("statement", **found.to_json())
    for line in found.lines():
        output.say(line)


@app.command("canaries")
def canaries(
    target: Target,
    clients: Clients = "clients",
    count: Annotated[int, typer.Option("--canaries", min=20, help="Canaries; about half of them join.")] = 100,
    norm: Annotated[float | None, typer.Option(min=0.0, help="Of a canary's update; the experiment's clip.")] = None,
    claim: Annotated[
        float | None, typer.Option(min=0.0, help="The epsilon to hold against; the experiment's own if absent.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Of the claim, where the experiment has none.")] = 1e-5,
    rounds: RoundsOption = None,
    trainer: Trainer = None,
    workers: Workers = 1,
    json: Json = False,
) -> None:
    """Simulate the experiment with canary clients, look for them in the model, and bound epsilon from below."""
    from coterie.cli.rounds import RoundTable
    from coterie.cli.simulate import show
    from coterie.simulation.canaries import audit_by_canaries

    output = Output(json)
    experiment, sources = _loaded(target, clients, rounds)
    with RoundTable(output, f"{experiment.name}: {len(sources)} clients and {count} canaries") as table:
        found = audit_by_canaries(
            experiment,
            sources,
            canaries=count,
            norm=norm,
            delta=delta,
            claimed=claim,
            trainer=trainer,
            workers=workers,
            on_event=lambda event: show(table, event),
        )
    _judge(output, found.audit)


@app.command("guesses")
def guesses(
    count: Annotated[int, typer.Option("--canaries", min=1, help="Canaries whose coins were tossed.")],
    guessed: Annotated[int, typer.Option("--guesses", min=1, help="For how many a guess was made.")],
    correct: Annotated[int, typer.Option(min=0, help="How many guesses were right.")],
    delta: Annotated[float, typer.Option(help="Of the claim.")] = 1e-5,
    claim: Claim = None,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    json: Json = False,
) -> None:
    """Bound epsilon from the guesses of one run (Steinke, Nasr and Jagielski, 2023)."""
    from coterie.privacy.audit.one_run import Audit, epsilon_lower_bound

    bound = epsilon_lower_bound(count, guessed, correct, delta, confidence=confidence)
    _judge(Output(json), Audit(count, guessed, correct, delta, confidence, bound, claim))


@app.command("members")
def members(
    target: Target,
    clients: Clients = "clients",
    rows: Annotated[int, typer.Option(min=8, help="The most rows of each kind.")] = 400,
    claim: Claim = None,
    rounds: RoundsOption = None,
    trainer: Trainer = None,
    workers: Workers = 1,
    json: Json = False,
) -> None:
    """Simulate the experiment, and tell by their losses rows that it was trained on from rows held out."""
    from coterie.cli.rounds import RoundTable
    from coterie.cli.simulate import show
    from coterie.simulation import simulate_full
    from coterie.simulation.members import infer_members

    output = Output(json)
    experiment, sources = _loaded(target, clients, rounds)
    with RoundTable(output, f"{experiment.name}: {len(sources)} virtual clients") as table:
        result = simulate_full(
            experiment, sources, trainer=trainer, workers=workers, on_event=lambda event: show(table, event)
        )
    found = infer_members(result, experiment, sources, rows=rows, trainer=trainer)
    holds = claim is None or found.epsilon <= claim
    output.event("members", **found.to_json(), claimed=claim, holds=holds)
    output.say(
        f"{found.members} rows that were trained on, {found.outsiders} that were not: area under the curve "
        f"{figure(found.auc, 3)} (0.5 is blind); {found.found:.1%} found at 1 % of mistakes; epsilon is at least "
        f"{figure(found.epsilon, 3)} for a row."
    )
    if not holds:
        output.say(f"The claim of epsilon {claim:g} is refuted, with 95 % confidence.")
        raise typer.Exit(FAILED)


def _judge(output: Output, audit: "Audit") -> None:
    """Say it, and leave with an error where the claim does not hold."""
    output.event("audit", **audit.to_json())
    output.say(
        f"{audit.correct} of {audit.guesses} guesses about {audit.canaries} canaries were right: epsilon is at least "
        f"{figure(audit.epsilon)} at delta {audit.delta:g}, with {audit.confidence:.0%} confidence."
    )
    if audit.claimed is None:
        output.say("Nothing was claimed; give --claim, or let the experiment ask for differential privacy.")
    elif audit.holds:
        output.say(f"The claim of epsilon {audit.claimed:.4g} is not refuted; an audit can never prove one.")
    else:
        output.say(f"The claim of epsilon {audit.claimed:.4g} is REFUTED: look for noise that was left out.")
        raise typer.Exit(FAILED)


def _loaded(target: str, clients: str, rounds: int | None) -> "tuple[Experiment, Sequence[Any]]":
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
