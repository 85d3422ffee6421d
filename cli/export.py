"""`coterie export`: a trained model as the file that is delivered."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coterie.cli.output import Json, Output, size
from coterie.cli.places import DEFAULT_URL, HOME, Authority, Token, Url, admin_token, file_to_write, folder_name
from coterie.errors import InputError

if TYPE_CHECKING:
    from coterie.compute.export import Examples, ExportReport

_INFER = "infer.onnx"


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, a simulation's folder or name, or an experiment on the coordinator.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.onnx"),
    precision: Annotated[
        Literal["float32", "float16", "int8"], typer.Option(help="Of weights and activations; int8 needs --data.")
    ] = "float32",
    data: Annotated[
        Path | None, typer.Option(help="Rows to measure on, and to calibrate int8: a file such as .npz or .csv.")
    ] = None,
    calibration_data: Annotated[
        Path | None, typer.Option(help="Rows to calibrate int8 on, so that --data measures on rows it has not seen.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The label's column in --data; `label` or `y` when absent, if there is one.")
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(metavar="FILE[:NAME]", help="The experiment whose schema reads --data, as devices read theirs."),
    ] = None,
    calibration: Annotated[
        Literal["minmax", "percentile", "kl"], typer.Option(help="How int8 chooses the range of an activation.")
    ] = "minmax",
    weights: Annotated[
        Literal["symmetric", "asymmetric"], typer.Option(help="How int8 lays its levels over weights.")
    ] = "symmetric",
    activations: Annotated[
        Literal["symmetric", "asymmetric", "float32"],
        typer.Option(help="How int8 lays its levels over activations; float32 quantises weights alone."),
    ] = "asymmetric",
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="A scale for every output channel, or for every tensor.")
    ] = True,
    sizes: Annotated[
        list[str] | None, typer.Option("--size", metavar="NAME=N", help="A size that the file leaves open: batch=8.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write a bundle too: the file, its quantisation table, and checks with the right answers."),
    ] = None,
    version: Annotated[
        str, typer.Option(help="Of a coordinator's experiment: best, latest, a round, a sha256's start, average(N).")
    ] = "best",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of one batch.")] = 50,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the timed runs.")] = 1,
    url: Url = DEFAULT_URL,
    token: Token = None,
    ca: Authority = None,
    json: Json = False,
) -> None:
    """Write a model for inference: BatchNorm and constants folded, fewer digits if wished, and checked.

    The file runs in plain onnxruntime. It was run so before it is written, beside the model that it comes from.
    """
    from coterie.compute.export import ExportOptions
    from coterie.compute.export import export as exported
    from coterie.compute.quant.settings import QuantSettings

    output = Output(json)
    target = file_to_write(out)
    packed = None if bundle is None else file_to_write(bundle)
    options = ExportOptions(
        precision=precision,
        quantisation=QuantSettings(
            weights=weights,
            activations=None if activations == "float32" else activations,
            per_channel=per_channel,
            calibration=calibration,
        ),
        sizes=_sizes(sizes or []),
        repeats=repeats,
        threads=threads,
    )
    source = _found(model, version, url, token, ca)
    result = exported(
        source,
        options,
        examples=_examples(source, data, label, experiment),
        calibration=_examples(source, calibration_data, label, experiment),
    )
    written = result.save(target)
    if packed is not None:
        from coterie.compute.bundle import make_bundle, write_bundle

        write_bundle(packed, make_bundle(result.data, result.sample, reference=result.reference))
    output.event("exported", model=model, path=written, bundle=packed, report=result.report.to_json())
    _tell(output, result.report, written)
    if packed is not None:
        output.say(f"{packed}: {size(packed.stat().st_size)}, with checks")


def _tell(output: Output, report: "ExportReport", written: Path) -> None:
    output.table(("measured", "before", "after", "change"), report.rows_of_table(), empty="")
    output.say(f"{written}: {size(report.after.bytes)}, run by {report.runtime} alone")
    if not report.rows:
        output.say("Compared on random numbers; --data FILE measures accuracy on your rows.")


def _sizes(given: list[str]) -> dict[str, int]:
    made: dict[str, int] = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isdecimal()):
            raise InputError(f"--size {text}: a size is NAME=N.", hint="For example: --size batch=8", code="usage")
        made[name] = int(number)
    return made


def _found(model: str, version: str, url: str, token: str | None, ca: Path | None) -> str | Path | bytes:
    """The file that a word means: a path, a simulation's infer.onnx, or a model version of a coordinator."""
    path = Path(model)
    if path.suffix == ".onnx" and not path.is_file():
        raise InputError(
            f"There is no file {model}.",
            hint="Name an ONNX file, a simulation, or an experiment on the coordinator.",
            code="file_unusable",
        )
    if path.is_dir() and (path / _INFER).is_file():
        return path / _INFER
    if path.is_file():
        return path
    simulated = HOME / "simulations" / folder_name(model) / _INFER
    return simulated if simulated.is_file() else _downloaded(model, version, url, token, ca)


def _downloaded(run: str, version: str, url: str, token: str | None, ca: Path | None) -> bytes:
    from tempfile import TemporaryDirectory

    from coterie.cli.watch import chosen
    from coterie.client_sdk.control.control import Control

    with TemporaryDirectory() as folder, Control(url, token=admin_token(token), ca=ca) as control:
        return chosen(control, run).download(Path(folder) / _INFER, version=version).read_bytes()


def _examples(
    source: str | Path | bytes, data: Path | None, label: str | None, experiment: str | None
) -> "Examples | None":
    """The rows of --data, each array under the name that the model has for it."""
    if data is None:
        return None
    from coterie.cli.export_rows import from_columns, from_schema
    from coterie.compute.onnx import load

    names = [given.name for given in load(source).inputs]
    if experiment is not None:
        from coterie.cli.loading import load_experiment

        loaded: Any = load_experiment(experiment)[0]
        return from_schema(data, loaded.schema, names)
    return from_columns(data, names, label)
