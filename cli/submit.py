"""`coterie submit`: the same experiment, on a coordinator with real clients."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.joining import again, joining
from coterie.cli.output import JsonOption, Output, short_id
from coterie.cli.places import DEFAULT_URL, RESEARCHER_KEY, AuthorityOption, TokenOption, UrlOption, access_token
from coterie.cli.promises import promise, promised
from coterie.errors import RemoteError

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.control import PopulationView
    from coterie.protocol.rounds import RoundPolicy


def submit(
    target: Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="The file that makes the experiment.")],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    population: Annotated[
        str | None, typer.Option(help="The population to train over (default: named like the experiment).")
    ] = None,
    key: Annotated[Path, typer.Option(help="The researcher's signing key, created if absent.")] = RESEARCHER_KEY,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds to run, instead of the experiment's own.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed, instead of the experiment's own.")] = None,
    initial: Annotated[
        Path | None, typer.Option(help="Weights to start from: `coterie models download --form weights` writes them.")
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Show the rounds until the experiment ends.")] = False,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Compile, sign and start an experiment on a coordinator, then say how clients join."""
    from coterie.aggregation.external_model import ExternalModel
    from coterie.cli.loading import load_experiment, override
    from coterie.cli.watch import follow_run, running
    from coterie.client_sdk.control.control import Control
    from coterie.client_sdk.control.submission import slug
    from coterie.client_sdk.control.submit import signing_key

    output = Output(json)
    experiment, _ = load_experiment(target)
    experiment = override(experiment, rounds=rounds, seed=seed, initial=initial)
    place, external = population or slug(experiment.name), isinstance(experiment.model, ExternalModel)
    with Control(url, token=access_token(token), ca=ca) as control:
        new, signer, before = not key.exists(), signing_key(key), existing_population(control, place)
        promise(output, experiment)
        run = control.submit(experiment, population=place, key=signer)
        join = joining(output, control, run, place, url, ca, external=external, **promised(experiment))
        output.say(f"Experiment {run.name} ({run.id}) waits for clients of population {place}.")
        output.say(patience(experiment.rounds))
        if before is not None and before.devices and signer.public not in before.signers:
            output.say(unknown_signer(key, signer.public, before.devices, new=new))
        output.say("A client joins with (the token is a secret; new ones cost nothing):")
        output.say(f"  {join}")
        earlier = [view.id for view in running(control, run.name) if view.id != run.id]
        way = again(url, ca)
        word = short_id(run.id) if earlier else quote(run.name)
        output.say(f"Follow it: coterie watch {word}{way}    stop it: coterie stop {word}{way}")
        if earlier:
            others = ", ".join(map(short_id, earlier))
            output.say(f"The name alone means this one, and {others} of the same name is still running.")
        if follow:
            follow_run(output, run, way)


def existing_population(control: "Control", population: str) -> "PopulationView | None":
    """A population as it stands before the experiment; None where there is none yet."""
    try:
        return control.population(population)
    except RemoteError as error:
        if error.details.get("http_status") != 404:
            raise
        return None


def unknown_signer(key: Path, public: str, devices: int, *, new: bool) -> str:
    """What to do where devices do not know the key that signs, and will refuse its plans."""
    made = f"A new signing key was made in {key.absolute()}" if new else f"The key in {key.absolute()} is another one"
    clients = "1 client has joined that trusts" if devices == 1 else f"{devices} clients have joined that trust"
    return (
        f"Warning: {made}, and {clients} other keys: they refuse what it signs. If you have the earlier key, stop this "
        f"experiment and submit it with --key FILE. Else each client's policy must name the new one: "
        f'signers = ["{public}"]'
    )


def patience(rounds: "RoundPolicy") -> str:
    """How long an experiment waits for clients that do not come: its rounds begin at once, with or without any."""
    from coterie.aggregation.progress import STALLED_AFTER

    clients = "a client" if rounds.min_updates == 1 else f"{rounds.min_updates} clients"
    return f"It ends when {STALLED_AFTER} rounds in a row, of {rounds.deadline_s:g} s each, do not find {clients}."
