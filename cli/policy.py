"""`coterie policy`: the floor that an operator sets under a population's experiments."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from coterie.cli.budget import PopulationArgument, the_population
from coterie.cli.output import JsonOption, Output
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.errors import InputError

NONE = "none"
_BOUNDS = ("max_epsilon_per_experiment", "max_epsilon_per_year")
# What the coordinator takes (`coterie.protocol.control`), said in the words of the options.
_MOST = {
    "--min-cohort": 1_000_000,
    "--max-epsilon-per-experiment": 1e6,
    "--max-epsilon-per-year": 1e6,
    "--delta": 0.1,
}
_UNITS = ("user", "example", NONE)

SecureOption = Annotated[
    bool | None,
    typer.Option(
        "--require-secure-aggregation/--allow-plain-aggregation",
        help="Whether the coordinator may ever see one device's update.",
    ),
]
CohortOption = Annotated[
    str | None, typer.Option("--min-cohort", help="The least number of devices in a sum, or none.")
]
PerExperimentOption = Annotated[
    str | None, typer.Option("--max-epsilon-per-experiment", help="The most ε of one experiment, or none.")
]
PerYearOption = Annotated[
    str | None, typer.Option("--max-epsilon-per-year", help="The most ε of all experiments of any 365 days, or none.")
]
DeltaOption = Annotated[str | None, typer.Option("--delta", help="The δ of both, far below 1 / devices; or none.")]
UnitOption = Annotated[
    str | None, typer.Option("--unit", help="Whose loss ε bounds: user (a device with all of its rows) or example.")
]
AlgorithmsOption = Annotated[
    list[str] | None,
    typer.Option("--algorithm", help="An allowed algorithm (repeatable); none allows any."),
]
SignersOption = Annotated[
    list[str] | None,
    typer.Option("--signer", help="A key whose plans are accepted, and no others (repeatable); none accepts any."),
]

EndorsersOption = Annotated[
    list[str] | None,
    typer.Option("--endorser", help="An issuer whose endorsement devices need (repeatable), or none."),
]


def policy(
    population: PopulationArgument = None,
    secure: SecureOption = None,
    min_cohort: CohortOption = None,
    per_experiment: PerExperimentOption = None,
    per_year: PerYearOption = None,
    delta: DeltaOption = None,
    unit: UnitOption = None,
    algorithm: AlgorithmsOption = None,
    signer: SignersOption = None,
    endorser: EndorsersOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Show a population's policy, or change the lines that are given. No experiment can go below it."""
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.control import PolicyChange
    from coterie.protocol.wire import read_message

    output = Output(json)
    asked: dict[str, Any] = {
        "require_secure_aggregation": secure,
        "min_cohort": _number("--min-cohort", min_cohort, int),
        "max_epsilon_per_experiment": _number("--max-epsilon-per-experiment", per_experiment, float),
        "max_epsilon_per_year": _number("--max-epsilon-per-year", per_year, float),
        "delta": _number("--delta", delta, float),
        "unit": _one_of("--unit", unit, _UNITS),
        "algorithms": algorithm or None,
        "signers": _keys("--signer", signer) or None,
        "endorsers": _keys("--endorser", endorser) or None,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    change = {name: None if value in (NONE, [NONE]) else value for name, value in given.items()}
    with Control(url, token=access_token(token), ca=ca) as control:
        name = the_population(control, population)
        if change:
            _needs_delta(change, control.population(name).policy.delta)
            view = control.change_policy(name, read_message(PolicyChange, change))
        else:
            view = control.population(name)
    lines = view.policy.model_dump(mode="json")
    output.event("policy", population=name, **lines, signers=view.signers)
    only = lines.pop("signers_only")
    output.table(
        ("line", "value"),
        [(line, _format_value(value)) for line, value in lines.items()]
        + [("signers", "those below and no others" if only else "those below and whoever submits")],
        empty="",
    )
    for public in view.signers:
        output.say(public)


def _number(option: str, text: str | None, kind: type[int] | type[float]) -> int | float | str | None:
    """What an option says: absent, the word none, or a number."""
    if text is None or text == NONE:
        return text
    try:
        number = kind(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise InputError(f"{option} must be {wanted} or none, not {text[:64]!r}.", code="usage") from error
    if not _MOST[option] >= number > 0:
        raise InputError(
            f"{option} must be above 0 and at most {_MOST[option]:g}, or none; got {text[:64]}.", code="usage"
        )
    return number


def _one_of(option: str, text: str | None, known: Sequence[str]) -> str | None:
    if text is not None and text not in known:
        raise InputError(f"{option} must be one of {', '.join(known)}, not {text[:64]!r}.", code="usage")
    return text


def _keys(option: str, keys: list[str] | None) -> list[str] | None:
    from coterie.protocol.signing import PUBLIC_PATTERN

    for public in keys or ():
        if keys != [NONE] and not re.fullmatch(PUBLIC_PATTERN, public):
            raise InputError(
                f"{option} must be a public key of 64 lower-case hexadecimal digits, or none; not {public[:72]!r}.",
                hint="`coterie policy` shows the keys that have submitted so far.",
                code="usage",
            )
    return keys


def _needs_delta(change: Mapping[str, Any], before: float | None) -> None:
    """An ε without its δ says nothing: the option is named, where the coordinator would name a field."""
    bounds = [name for name in _BOUNDS if change.get(name) is not None]
    if bounds and change.get("delta", before) is None:
        option = f"--{bounds[0].replace('_', '-')}"
        raise InputError(
            f"{option} needs a δ, and this population has none yet.",
            hint="Add --delta, far below 1 / devices, for example --delta 1e-7.",
            code="usage",
        )


def _format_value(value: object) -> object:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            return value
