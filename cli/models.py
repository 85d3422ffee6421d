"""`coterie models`: the model versions of an experiment."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coterie.cli.output import JsonOption, Output, figure, size
from coterie.cli.places import (
    DEFAULT_URL,
    AuthorityOption,
    RunArgument,
    TokenOption,
    UrlOption,
    access_token,
    file_to_write,
)
from coterie.errors import InputError

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Run

app = typer.Typer(help="List and download the models of an experiment.")


@app.command("list")
def list_models(
    run: RunArgument = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """List an experiment's model versions with what each scored."""
    from coterie.cli.watch import find_run
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    with Control(url, token=access_token(token), ca=ca) as control:
        models = find_run(control, run).models()
    for model in models:
        output.event("model", **model.model_dump(mode="json"))
    output.table(
        ("round", "sha256", "size", "loss", "accuracy", "best"),
        [
            (
                model.round,
                model.sha256[:12],
                size(model.size),
                figure(model.metrics.get("loss")),
                figure(model.metrics.get("accuracy")),
                "best" if model.best else "",
            )
            for model in models
        ],
        empty="No model yet; watch the rounds: coterie watch",
    )


@app.command("download")
def download(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An experiment's name, id or the beginning of the id.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to write.")] = Path("infer.onnx"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    version: Annotated[
        str, typer.Option(help="best, latest, a round's number, the start of a sha256, or average(N).")
    ] = "best",
    form: Annotated[
        Literal["infer", "weights"],
        typer.Option(help="infer (an ONNX file with the weights inside) or weights (safetensors)."),
    ] = "infer",
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Download a model that runs in plain onnxruntime, or its weights."""
    from coterie.cli.watch import find_run
    from coterie.client_sdk.control.control import Control

    output = Output(json)
    if path.is_file() and not force:
        raise InputError(
            f"{path} already exists.", hint="Name another file, or replace it with --force.", code="file_exists"
        )
    with Control(url, token=access_token(token), ca=ca) as control:
        newest = find_run(control, run)
        named = [control.run(view.id) for view in control.experiments() if view.name == run] or [newest]
        experiment = next((each for each in named if trained(each)), newest)
        written = experiment.download(file_to_write(path), version=version, form=form)
        known = trained(experiment)
    if experiment.id != newest.id:
        output.say(f"The newest experiment of that name, {newest.id}, has no round committed; this is {experiment.id}.")
    output.event("downloaded", path=written, version=version, form=form, bytes=written.stat().st_size)
    output.say(f"{written}: {size(written.stat().st_size)}")
    if not known:
        output.say("No round is committed yet: these are the weights that the experiment began with.")


def trained(run: "Run") -> bool:
    """Whether a round of an experiment is committed."""
    return any(model.round for model in run.models())
