"""`coterie budget`: what a population's privacy has cost, the proof of it, and its picture."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.failures import FAILED
from coterie.cli.output import Json, Output, figure, short_id
from coterie.cli.places import DEFAULT_URL, HOME, Authority, Token, Url, admin_token, file_to_write
from coterie.errors import InputError, NotFound

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control
    from coterie.privacy.ledger.chain import Verdict

app = typer.Typer(help="Show, verify and plot the privacy budget of a population.")

PopulationArgument = Annotated[
    str | None, typer.Argument(metavar="POPULATION", help="Its name; the only one if absent.")
]


@app.command("show")
def show(
    population: PopulationArgument = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    ca: Authority = None,
    json: Json = False,
) -> None:
    """Show what is spent, reserved and allowed: by experiment, and over 365 days."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=admin_token(token), ca=ca) as control:
        view = control.budget(the_population(control, population))
    for experiment in view.experiments:
        output.event("experiment_budget", population=view.population, **experiment.model_dump(mode="json"))
    output.event("budget", **view.model_dump(mode="json", exclude={"experiments"}))
    output.table(
        ("experiment", "paid", "reserved", "back", "ε paid", "ε in all", "limit", "δ"),
        [
            (
                short_id(one.experiment),
                one.rounds_spent,
                one.rounds_reserved,
                one.rounds_refunded,
                figure(one.epsilon_spent),
                figure(one.epsilon),
                figure(one.limit),
                f"{one.delta:g}",
            )
            for one in view.experiments
        ],
        empty=f"No experiment over {view.population} has asked for differential privacy.",
    )
    if view.experiments:
        output.say("Rounds: paid, reserved for what is under way, given back. ε in all counts what is reserved too.")
    for limit in view.limits:
        if not limit.scope.startswith("exp_"):
            output.say(f"Limit for {limit.scope}: ε {limit.epsilon:g} at δ {limit.delta:g}")
    output.say(
        f"{view.population}: over the last 365 days ε {figure(view.epsilon_year_spent)} paid, "
        f"{figure(view.epsilon_year)} with what is reserved, at δ {view.delta:g}, for one that took part in everything."
    )
    output.say(f"{view.entries} entries, the newest {view.digest[:16]}…  Check them: coterie budget verify")


@app.command("verify")
def verify(
    population: PopulationArgument = None,
    head: Annotated[
        str | None,
        typer.Option(help="A digest that you noted earlier, or its first 16 digits or more: it must still be there."),
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    ca: Authority = None,
    json: Json = False,
) -> None:
    """Check the ledger entry by entry, here: order, digests, signatures, and that nothing impossible was written.

    Exits with 1 at the first broken link, and names it.
    """
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    if head is not None and not re.fullmatch(r"[0-9a-f]{16,64}", head):
        raise InputError(
            f"--head is a digest, or its first 16 hexadecimal digits or more, not {head[:72]!r}.",
            hint="`coterie budget verify` and `coterie budget show` print the newest one.",
            code="usage",
        )
    with Control(url, token=admin_token(token), ca=ca) as control:
        name = the_population(control, population)
        verdict, digests = _checked(control, name)
    broken = verdict.broken
    fault = None if broken is None else f"entry {broken.sequence}: {broken.why}"
    if fault is None and head is not None and not _holds(digests, head):
        fault = f"no entry has the digest {head[:64]}: the chain was written anew, or its end was cut off"
    output.event(
        "verified", population=name, entries=verdict.head.sequence, digest=verdict.head.digest, fault=fault,
        broken=None if broken is None else broken.sequence,
    )  # fmt: skip
    if fault is not None:
        output.say(f"{name}: the ledger does not hold. {fault[0].upper()}{fault[1:]}.")
        raise typer.Exit(FAILED)
    output.say(
        f"{name}: all {verdict.head.sequence} entries hold, signed by the coordinator. Note the newest digest, and "
        f"give it the next time: coterie budget verify {name} --head {verdict.head.digest[:16]}"
    )


@app.command("plot")
def plot(
    population: PopulationArgument = None,
    out: Annotated[Path | None, typer.Option(help="The picture to write, an .svg file.")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    ca: Authority = None,
    json: Json = False,
) -> None:
    """Draw how ε grew, round by round, beside what is allowed; computed here from the verified ledger."""
    from coterie.aggregation.report.budget import budget_panels
    from coterie.aggregation.report.svg import svg
    from coterie.client_sdk.control.control import Control
    from coterie.privacy.ledger.accountant import epsilon
    from coterie.protocol.files import make_folder, write_durably

    output = Output(json)
    with Control(url, token=admin_token(token), ca=ca) as control:
        name = the_population(control, population)
        verdict, _ = _checked(control, name)
    if verdict.broken is not None:
        raise InputError(
            f"The ledger of {name} does not hold from entry {verdict.broken.sequence} on: {verdict.broken.why}.",
            hint="coterie budget verify",
            code="ledger_broken",
        )
    panels = budget_panels(verdict.state, epsilon)
    if not panels:
        raise InputError(
            f"Nothing of {name} can be drawn yet: no round of it has spent privacy.",
            hint=f"coterie budget show {name}",
            code="run_unreadable",
        )
    path = file_to_write(out or HOME / "reports" / name / "budget.svg")
    if path.suffix.lower() != ".svg":
        raise InputError(
            f"{path} cannot be drawn: a budget is drawn as SVG.",
            hint=f"Name it {path.with_suffix('.svg')}.",
            code="report_format",
        )
    make_folder(path.parent)
    write_durably(path, svg(f"{name}: privacy budget", panels).encode())
    output.event("plotted", population=name, path=path, experiments=len(verdict.state.experiments))
    output.say(f"Drawn: {path}")


def the_population(control: "Control", name: str | None) -> str:
    """The name, or that of the only population."""
    if name is not None:
        return name
    views = control.populations()
    if len(views) == 1:
        return views[0].name
    have = ", ".join(view.name for view in views[:8])
    raise NotFound(
        f"This coordinator has {len(views)} populations{': ' + have if have else ''}.",
        hint="Name one of them." if views else "The first `coterie submit` makes one.",
        code="population_unknown",
    )


def _checked(control: "Control", name: str) -> "tuple[Verdict, list[str]]":
    """What the ledger says, held against the coordinator's key; and its digests in order."""
    from coterie.privacy.ledger.chain import Entry, Head, check

    public = control.population(name).coordinator_key
    entries = [Entry.from_json(entry.model_dump()) for entry in control.budget_entries(name)]
    return check(entries, head=Head(population=name), public=public), [entry.digest for entry in entries]


def _holds(digests: list[str], head: str) -> bool:
    return any(digest.startswith(head) for digest in digests)
