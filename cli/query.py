"""`coterie query`: a question about the rows of a population's devices, asked without training."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from coterie.cli.joining import again, joining
from coterie.cli.output import JsonOption, Output, figure, short_id
from coterie.cli.places import DEFAULT_URL, RESEARCHER_KEY, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.cli.promises import promise, promised
from coterie.cli.query_kinds import Kind, in_python, levels_of, make_query, refuse_idle
from coterie.errors import DOCUMENTATION, ConfigurationError, InputError, NotFound
from coterie.protocol.mechanisms import DISTRIBUTED, DistributedMechanism

if TYPE_CHECKING:
    from coterie.aggregation.analytics import Query
    from coterie.client_sdk.control.control import Control, Run
    from coterie.protocol.privacy import LocalLevel, UserLevel
    from coterie.protocol.schema import DataSchema


Mechanism: TypeAlias = Literal["gaussian", DistributedMechanism, "local"]
"""Who makes the noise, and of which kind."""

_PRIVACY = {"clip": 100.0, "delta": 1e-6, "mechanism": "gaussian"}


def query(
    kind: Annotated[Kind, typer.Argument(help="What to ask for.")],
    column: Annotated[str, typer.Argument(help="A feature of the population's schema, or its label.")],
    population: Annotated[
        str | None, typer.Option(help="Population whose devices are asked (default: the only one).")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="How many devices a round asks (default: all that are enrolled).")
    ] = None,
    low: Annotated[
        float | None, typer.Option(help="The smallest value, in the column's units (default: the schema's).")
    ] = None,
    high: Annotated[float | None, typer.Option(help="The largest value (default: the schema's).")] = None,
    bins: Annotated[
        int | None,
        typer.Option(help="Bins of a histogram (default: 32) or of a round of quantiles (64; fewer with noise)."),
    ] = None,
    levels: Annotated[
        str | None, typer.Option(help="Quantiles, separated by commas: 0.5,0.9 (default: quartiles).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds over which quantiles are narrowed (default: 3).")] = None,
    bits: Annotated[int | None, typer.Option(help="Heavy hitters are whole numbers below 2**bits.")] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Smallest share of all values that makes a heavy hitter.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Bits of heavy hitters found per round (default: 4).")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="User-level differential privacy: the epsilon of all rounds together.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of differential privacy, with --epsilon (default: 1e-6).")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Clip: about how many rows of a device count, with --epsilon (default: 100).")
    ] = None,
    mechanism: Annotated[
        Mechanism | None,
        typer.Option(
            help="With --epsilon: the coordinator's noise (gaussian), all devices' together "
            f"({', '.join(DISTRIBUTED)}; under secure aggregation), or each device's by itself (local)."
        ),
    ] = None,
    secure: Annotated[
        bool | None,
        typer.Option(
            "--secure-aggregation/--plain-aggregation",
            help="Whether the coordinator sees sums over all devices only; default: on from ten devices.",
        ),
    ] = None,
    min_updates: Annotated[
        int | None, typer.Option(min=1, help="How many answers a round needs (default: all devices asked).")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds after which a round continues without the missing devices (default: 600)."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    key: Annotated[Path, typer.Option(help="The researcher's signing key, created if absent.")] = RESEARCHER_KEY,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Ask a population's devices about their rows, and print the answer with its errors and what it cost."""
    output = Output(json)
    given = {
        "low": low, "high": high, "bins": bins, "levels": None if levels is None else levels_of(levels),
        "rounds": rounds, "bits": bits, "fraction": fraction, "step": step,
    }  # fmt: skip
    refuse_idle(kind, given)
    privacy = _privacy(epsilon, {"clip": clip, "delta": delta, "mechanism": mechanism})
    policy: dict[str, Any] = {"min_updates": min_updates, "deadline_s": deadline}
    from coterie.aggregation.analytics import ask
    from coterie.aggregation.analytics.asking import foreseen
    from coterie.cli.query_answers import answer_json, say_answer
    from coterie.client_sdk.control.asking import answered
    from coterie.client_sdk.control.control import Control
    from coterie.client_sdk.control.submit import signing_key

    with Control(url, token=access_token(token), ca=ca) as control:
        place = _find_population(control, population, devices)
        question = make_query(kind, column, place.schema, given, noised=privacy is not None)
        experiment = ask(
            question,
            place.schema,
            clients=place.devices,
            privacy=privacy,
            secure_aggregation=secure,
            **{name: value for name, value in policy.items() if value is not None},
        )
        promise(output, experiment)
        if privacy is not None:
            output.say(foreseen(experiment).sentence)
        run = control.submit(experiment, population=place.name, key=signing_key(key))
        way = again(url, ca)
        with _explain_interrupt(output, run, question, way):
            lacking = place.devices - place.enrolled
            if lacking > 0:
                join = joining(output, control, run, place.name, url, ca)
            else:
                output.event("submitted", experiment=run.id, name=run.name, population=place.name, url=url)
                join = None
            output.say(f"{run.name} ({short_id(run.id)}) asks {place.devices} devices of {place.name}.")
            output.say(f"Ctrl-C leaves it running; end it: coterie stop {quote(short_id(run.id))}{way}")
            if join is not None:
                output.say(f"{lacking} more must join, each with (the token is a secret):  {join}")
            answers = _follow_rounds(output, run, question.rule.rounds)
            found = answered(question, run, clients=answers if experiment.secure is not None else 0)
        cost = _cost(control, place.name, run)
    output.event(
        "answer", query=kind.value, column=column, experiment=run.id, population=place.name, asked=place.devices,
        rounds=question.rule.rounds, answer=answer_json(found), privacy=cost,
        **promised(experiment),
    )  # fmt: skip
    if not json:
        elements, classes = _elements(place.schema, column), _classes(place.schema, column)
        say_answer(output, column, found, elements=elements, classes=classes)
        _say_cost(output, place.name, cost)


@dataclass(frozen=True)
class _Place:
    """Whose devices are asked, how many of them in a round and how many are enrolled, and what their rows are like."""

    name: str
    devices: int
    enrolled: int
    schema: "DataSchema"


def _find_population(control: "Control", population: str | None, wanted: int | None) -> _Place:
    views = control.populations()
    named = [view for view in views if population is None or view.name == population]
    if len(named) != 1:
        have = ", ".join(view.name for view in views[:8]) or "none"
        raise NotFound(
            f"No population is named, and this coordinator has {have}."
            if population is None
            else f"There is no population {population!r}; this coordinator has {have}.",
            hint="Name it with --population; the first `coterie submit` or `coterie prepare --url` makes one."
            if views
            else "Make one: `coterie submit` an experiment, or `coterie prepare --url` a draft of the schema.",
            code="population_unknown",
        )
    view = named[0]
    devices = view.devices if wanted is None else wanted
    if not devices:
        raise ConfigurationError(
            f"No device of {view.name} is enrolled, so the number of devices to ask is unknown.",
            hint="Give the number with --devices N, or let devices join first: `coterie client`.",
            code="asked_missing",
        )
    return _Place(view.name, devices, view.devices, view.data_schema)


def _elements(schema: "DataSchema", column: str) -> tuple[str, ...]:
    """What the elements of a column are called: as the columns of its file, where these are named."""
    field = next((one for one in schema.features if one.name == column), schema.label)
    if field.size == 1:
        return (column,)
    return field.columns if len(field.columns) == field.size else tuple(map(str, range(field.size)))


def _classes(schema: "DataSchema", column: str) -> tuple[str, ...]:
    """What the values of a column are called, where they are classes."""
    of_label = schema.label.classes if column == schema.label.name else None
    return tuple(map(str, of_label or ()))


def _privacy(epsilon: float | None, options: dict[str, Any]) -> "UserLevel | LocalLevel | None":
    """Raises InputError (``usage``) for options that would pass for protection where there is none."""
    if epsilon is None:
        for name, value in options.items():
            if value is not None:
                raise InputError(
                    f"--{name} has no effect without --epsilon: the answer would have no noise.",
                    hint=f"Add --epsilon, or leave --{name} out.",
                    code="usage",
                )
        return None
    from coterie.protocol.privacy import LocalLevel, UserLevel

    chosen: dict[str, Any] = {
        name: usual if options[name] is None else options[name] for name, usual in _PRIVACY.items()
    }
    mechanism = chosen.pop("mechanism")
    if mechanism == "local":
        return LocalLevel(mechanism="gaussian", epsilon=epsilon, **chosen)
    return UserLevel(mechanism=mechanism, epsilon=epsilon, **chosen)


@contextmanager
def _explain_interrupt(output: Output, run: "Run", question: "Query[Any]", way: str) -> Generator[None]:
    """Say at Ctrl-C what becomes of the question, and where its answer can still be found."""
    try:
        yield
    except KeyboardInterrupt:
        word = quote(short_id(run.id))
        output.say(f"\n{run.name} ({word}) is not withdrawn: devices may still answer, and what it pays is paid.")
        output.say(f"Its rounds: coterie watch {word}{way}    end it: coterie stop {word}{way}")
        line = f"answered({in_python(question)}, control.run({short_id(run.id)!r}))"
        output.say(f"Its answer is read from Python (docs/analytics.md#after-ctrl-c):\n  {line}")
        raise


def _follow_rounds(output: Output, run: "Run", rounds: int) -> int:
    """Say of every round how it ended, as it ends, and why devices gave tasks back. How many answered the last."""
    from coterie.cli.watch import ROUND_EVENTS, patiently

    answers, told = 0, set[str]()
    for event in patiently(run):
        data = dict(event.data)
        if event.type == "task.aborted" and data["code"] not in told:
            told.add(data["code"])
            # Nobody may come any more, and the round would wait for its deadline without a word.
            output.say(
                f"A device gave its task back: {data['code']}; see {DOCUMENTATION}#{data['code'].replace('_', '-')}"
            )
        if event.type not in ROUND_EVENTS:
            continue
        output.event("round", **{name: value for name, value in data.items() if name != "event"})
        said = f"Round {data['round']} of {rounds}: "
        if data["state"] == "committed":
            answers = int(data.get("accepted", 0))
            output.say(f"{said}{answers} devices answered.")
        else:
            output.say(f"{said}abandoned, {data.get('detail') or data.get('cause')}.")
    return answers


def _cost(control: "Control", population: str, run: "Run") -> dict[str, Any] | None:
    """What the population's ledger says that this question cost; None where it cost nothing."""
    view = control.budget(population)
    mine = next((one for one in view.experiments if one.experiment == run.id), None)
    if mine is None:
        return None
    year = {"epsilon_year_spent": view.epsilon_year_spent, "delta_year": view.delta}
    return {**mine.model_dump(mode="json", exclude={"experiment"}), **year}


def _say_cost(output: Output, population: str, cost: dict[str, Any] | None) -> None:
    if cost is None:
        output.say("Without noise: exact sums, which can reveal what only one device has; --epsilon adds some.")
        return
    paid, rounds = figure(cost["epsilon_spent"]), cost["rounds_spent"]
    turns = "one round" if rounds == 1 else f"{rounds} rounds"
    output.say(f"Paid from the ledger of {population}: ε {paid} at δ {cost['delta']:g}, for {turns}.")
    year = figure(cost["epsilon_year_spent"])
    output.say(f"All questions and experiments of 365 days: ε {year} at δ {cost['delta_year']:g}.")
