"""`coterie budget`: what a population's privacy has cost, the proof of it, and its picture."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from coterie.cli.failures import FAILED
from coterie.cli.output import JsonOption, Output, figure, short_id
from coterie.cli.places import DEFAULT_URL, HOME, AuthorityOption, TokenOption, UrlOption, access_token, file_to_write
from coterie.errors import InputError, NotFound

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control
    from coterie.privacy.ledger.chain import ChainVerdict, Entry

app = typer.Typer(help="Show, verify and plot the privacy budget of a population.")

PopulationArgument = Annotated[
    str | None, typer.Argument(metavar="POPULATION", help="Name of the population (default: the only one).")
]


@app.command("show")
def show(
    population: PopulationArgument = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Show what is spent, reserved and allowed: by experiment, and over 365 days."""
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
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
        typer.Option(help="A digest noted earlier, or at least its first 16 digits: the ledger must still contain it."),
    ] = None,
    receipt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A receipt of `coterie budget receipt`: the ledger must still contain its entry."
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
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
    kept = None if receipt is None else _receipt(receipt)
    with Control(url, token=access_token(token), ca=ca) as control:
        name = the_population(control, population or (None if kept is None else kept.population))
        verdict, entries = _read_and_check(control, name)
        public = control.population(name).coordinator_key
    broken, digests = verdict.broken, [entry.digest for entry in entries]
    fault = None if broken is None else f"entry {broken.sequence}: {broken.why}"
    if fault is None and head is not None and not _has_digest(digests, head):
        fault = f"no entry has the digest {head[:64]}: the chain was rewritten or truncated"
    if fault is None and kept is not None:
        fault = _not_continued(kept, name, public, digests)
    output.event(
        "verified", population=name, entries=verdict.head.sequence, digest=verdict.head.digest, fault=fault,
        broken=None if broken is None else broken.sequence,
    )  # fmt: skip
    if fault is not None:
        output.say(f"{name}: the ledger is not valid. {fault[0].upper()}{fault[1:]}.")
        raise typer.Exit(FAILED)
    output.say(
        f"{name}: all {verdict.head.sequence} entries are valid and signed by the coordinator. Note the newest "
        f"digest, and pass it next time: coterie budget verify {name} --head {verdict.head.digest[:16]}"
    )


@app.command("receipt")
def receipt(
    population: PopulationArgument = None,
    out: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Keep the newest entry of the ledger, signed by the coordinator, where the coordinator cannot reach it.

    `coterie budget verify --receipt FILE` says later whether the ledger still continues it.
    """
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.canonical import canonical_json
    from coterie.protocol.conversion import to_json
    from coterie.protocol.files import make_folder, write_durably

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        name = the_population(control, population)
        verdict, entries = _read_and_check(control, name)
        _require_valid(name, verdict)
        budget = control.budget(name)
    if not entries:
        raise InputError(
            f"The ledger of {name} is empty, so there is no receipt to write.",
            hint="The first experiment with differential privacy, or the first limit, writes to it.",
            code="ledger_empty",
        )
    newest = entries[-1]
    path = file_to_write(out or Path(f"{name}-{newest.sequence}.receipt.json"))
    make_folder(path.parent)
    write_durably(path, canonical_json(to_json(newest)))
    output.event(
        "receipt", population=name, entries=newest.sequence, digest=newest.digest, path=path, at=newest.at,
        epsilon_year_spent=budget.epsilon_year_spent, delta=budget.delta,
    )  # fmt: skip
    output.say(f"{name}: {newest.sequence} entries, the newest {newest.digest[:16]}…, kept in {path}.")
    output.say(f"Paid over the last 365 days: ε {figure(budget.epsilon_year_spent)} at δ {budget.delta:g}.")
    output.say(f"Keep it elsewhere; later: coterie budget verify {name} --receipt {path.name}")


@app.command("plot")
def plot(
    population: PopulationArgument = None,
    out: Annotated[Path | None, typer.Option(help="The picture to write, an .svg file.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Draw how ε grew, round by round, beside what is allowed; computed here from the verified ledger."""
    from coterie.aggregation.report.budget import budget_panels
    from coterie.aggregation.report.svg import svg
    from coterie.client_sdk.control.control import Control
    from coterie.privacy.ledger.accountant import epsilon
    from coterie.protocol.files import make_folder, write_durably

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        name = the_population(control, population)
        verdict, _ = _read_and_check(control, name)
    _require_valid(name, verdict)
    panels = budget_panels(verdict.state, epsilon)
    if not panels:
        raise InputError(
            f"Nothing to draw for {name} yet: none of its rounds spent privacy.",
            hint=f"coterie budget show {name}",
            code="run_unreadable",
        )
    path = file_to_write(out or HOME / "reports" / name / "budget.svg")
    if path.suffix.lower() != ".svg":
        raise InputError(
            f"{path} cannot be written: a budget is drawn as SVG.",
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


def _read_and_check(control: "Control", name: str) -> "tuple[ChainVerdict, list[Entry]]":
    """What the ledger says, held against the coordinator's key; and its entries in order."""
    from coterie.privacy.ledger.chain import Entry, Head, check

    public = control.population(name).coordinator_key
    entries = [Entry.from_json(entry.model_dump()) for entry in control.budget_entries(name)]
    return check(entries, head=Head(population=name), public=public), entries


def _require_valid(name: str, verdict: "ChainVerdict") -> None:
    """Raise InputError (``ledger_broken``) for a ledger that does not hold."""
    if verdict.broken is not None:
        raise InputError(
            f"The ledger of {name} is not valid from entry {verdict.broken.sequence} on: {verdict.broken.why}.",
            hint="coterie budget verify",
            code="ledger_broken",
        )


def _receipt(path: Path) -> "Entry":
    """The entry in a receipt. Raises InputError (``file_unusable``) for another file."""
    from coterie.privacy.ledger.chain import Entry
    from coterie.protocol.canonical import parse_json

    try:
        value = parse_json(path.read_bytes())
        if not isinstance(value, dict):
            raise InputError("it is not a JSON object")
        return Entry.from_json(cast(dict[str, object], value))
    except (OSError, InputError) as error:
        raise InputError(
            f"{path} is not a receipt of a ledger: {error}",
            hint="Give a file that `coterie budget receipt` wrote.",
            code="file_unusable",
        ) from error


def _not_continued(kept: "Entry", name: str, public: str, digests: list[str]) -> str | None:
    """Why a ledger does not continue a receipt; None where it does."""
    from coterie.privacy.ledger.chain import proven

    if kept.population != name:
        return f"the receipt is of the population {kept.population}"
    if (why := proven(kept, public)) is not None:
        return f"the receipt is not of this coordinator: {why}"
    if kept.sequence > len(digests):
        return (
            f"the receipt is of entry {kept.sequence} and the ledger ends at {len(digests)}: it was truncated, or "
            "the database is an old backup"
        )
    if digests[kept.sequence - 1] != kept.digest:
        return f"entry {kept.sequence} differs from the receipt's: the chain was rewritten"
    return None


def _has_digest(digests: list[str], head: str) -> bool:
    return any(digest.startswith(head) for digest in digests)
