"""`coterie prepare`: the statistics, texts and classes of a draft schema, agreed by sums over clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coterie.cli.joining import joining
from coterie.cli.output import JsonOption, Output
from coterie.cli.places import RESEARCHER_KEY, AuthorityOption, TokenOption, access_token, file_to_write
from coterie.cli.promises import promise, promised
from coterie.errors import ConfigurationError, ExperimentError

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment
    from coterie.aggregation.preparation import Prepared, Survey


def prepare(
    target: Annotated[
        str, typer.Argument(metavar="FILE[:NAME]", help="The file that makes the survey; NAME defaults to `survey`.")
    ],
    clients: Annotated[
        str, typer.Option(help="The name in FILE that holds, or returns, each client's data; for a simulation.")
    ] = "clients",
    url: Annotated[
        str | None, typer.Option(help="Ask the devices of this coordinator, instead of simulating clients.")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="How many devices a coordinator asks in a round.")] = None,
    population: Annotated[
        str | None, typer.Option(help="Population whose devices are asked (default: `survey`), created if absent.")
    ] = None,
    token: TokenOption = None,
    key: Annotated[Path, typer.Option(help="The researcher's signing key, created if absent.")] = RESEARCHER_KEY,
    epsilon: Annotated[
        float | None,
        typer.Option(help="User-level differential privacy: the epsilon of all rounds together; see --clip."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of differential privacy, with --epsilon.")] = 1e-6,
    clip: Annotated[float, typer.Option(help="Clip: about how many rows of a client count, with --epsilon.")] = 100.0,
    out: Annotated[Path, typer.Option(help="Where to write the schema.")] = Path("schema.json"),
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Find means, deviations, categories and classes without anybody's rows, and write the finished schema."""
    output = Output(json)
    survey, sources = _load_survey_and_clients(target, clients if url is None else None)
    path = file_to_write(out)
    options: dict[str, Any] = {}
    if epsilon is not None:
        from coterie.protocol.privacy import UserLevel

        options["privacy"] = UserLevel(clip=clip, delta=delta, epsilon=epsilon)
    if url is None:
        _refuse_idle(devices=devices, population=population)
        from coterie.simulation import prepare as simulated

        experiment = survey.ask(clients=len(sources), **options)
        promise(output, experiment)
        found = simulated(survey, sources, **options)
    else:
        if devices is None:
            raise ConfigurationError(
                "The number of devices to ask in a round is missing.",
                hint="Add --devices N: all of them, so that the answer covers every device.",
                code="asked_missing",
            )
        whose = population or "survey"
        experiment = survey.ask(clients=devices, name=f"survey of {whose}", **options)
        found = _on_coordinator(output, survey, experiment, url, token, key, whose, ca)
    from coterie.protocol.conversion import to_json
    from coterie.protocol.schema_file import write_schema

    write_schema(path, found.schema)
    output.event("prepared", path=path, rounds=survey.rounds, **to_json(found), **promised(experiment))
    for line in found.lines():
        output.say(line)
    output.say(f"Schema: {path}; experiments read it with read_schema({str(path)!r}).")


def _refuse_idle(**options: object) -> None:
    """An option that a simulation cannot heed would pass for one that it has."""
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(
                f"--{name} chooses devices of a coordinator, and no --url is given.",
                hint=f"Add --url URL, or leave --{name} out to simulate the clients of FILE.",
                code="url_missing",
            )


def _load_survey_and_clients(target: str, clients: str | None) -> "tuple[Survey, Sequence[Any]]":
    """The survey that the file makes (a Survey or a Draft, or a function that returns it), and each client's data."""
    from coterie.aggregation.preparation import Draft, Survey
    from coterie.cli.loading import call, load_module, split_target

    path, name = split_target(target)
    name = "survey" if name == "experiment" and not target.endswith(":experiment") else name
    module = load_module(path)
    value = call(module, path, name)
    if isinstance(value, Draft):
        value = Survey(value)
    if not isinstance(value, Survey):
        raise ExperimentError(
            f"{path}: `{name}` is a {type(value).__name__}, not a Survey or a Draft.",
            hint="Make it with coterie.aggregation.preparation.Survey(Draft(...)).",
            code="experiment_file",
        )
    if clients is None:
        return value, ()
    given = cast(object, call(module, path, clients))
    sources = cast(Sequence[Any], given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if not sources:
        what = f"a {type(cast(object, given)).__name__}" if given else "empty"
        raise ExperimentError(
            f"{path}: `{clients}` is {what}, not a sequence with each client's data.",
            hint='For example: clients = ["data/site-1.csv", "data/site-2.csv"]',
            code="experiment_file",
        )
    return value, sources


def _on_coordinator(
    output: Output,
    survey: "Survey",
    experiment: "Experiment",
    url: str,
    token: str | None,
    key: Path,
    population: str,
    ca: Path | None,
) -> "Prepared":
    from coterie.client_sdk.control.control import Control
    from coterie.client_sdk.control.preparing import prepared
    from coterie.client_sdk.control.submit import signing_key

    with Control(url, token=access_token(token), ca=ca) as control:
        run = control.submit(experiment, population=population, key=signing_key(key))
        join = joining(output, control, run, population, url, ca)
        output.say(f"The survey {run.name} ({run.id}) waits for clients of population {population}.")
        promise(output, experiment)
        output.say("A client joins with (it may stay for the training; the token is a secret):")
        output.say(f"  {join}")
        return prepared(survey, run)
