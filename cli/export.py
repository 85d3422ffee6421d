"""`coterie export`: a trained model as the file that is delivered."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coterie.cli.export_model import model_of
from coterie.cli.output import JsonOption, Output, size
from coterie.cli.places import DEFAULT_URL, AuthorityOption, TokenOption, UrlOption, file_to_write
from coterie.errors import InputError

if TYPE_CHECKING:
    from coterie.compute.export import Examples, ExportReport


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
        Literal["float32", "float16", "int8", "int8-dynamic"],
        typer.Option(help="Data type of the model; int8 needs --data, int8-dynamic measures in every call."),
    ] = "float32",
    data: Annotated[
        Path | None, typer.Option(help="Rows to measure on, and to calibrate int8: a file such as .npz or .csv.")
    ] = None,
    calibration_data: Annotated[
        Path | None, typer.Option(help="Rows to calibrate int8 on, so that --data measures on rows it has not seen.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The label's column in --data (default: `label` or `y`, if present).")
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(metavar="FILE[:NAME]", help="The experiment whose schema reads --data, as devices read theirs."),
    ] = None,
    calibration: Annotated[
        Literal["minmax", "percentile", "kl"], typer.Option(help="How int8 chooses the range of an activation.")
    ] = "minmax",
    weights: Annotated[
        Literal["symmetric", "asymmetric"], typer.Option(help="How int8 places its levels for weights.")
    ] = "symmetric",
    activations: Annotated[
        Literal["symmetric", "asymmetric", "float32"],
        typer.Option(help="How int8 places its levels for activations; float32 quantises weights only."),
    ] = "asymmetric",
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="A scale for every output channel, or for every tensor.")
    ] = True,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="NAME=N", help="A value for a symbolic dimension of the file: batch=8."),
    ] = None,
    batch: Annotated[
        Literal["fixed", "any"], typer.Option(help="Batch size of a call: fixed as in the model, or any.")
    ] = "fixed",
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write a bundle too: the file, its quantisation table, and checks with the right answers."),
    ] = None,
    version: Annotated[
        str,
        typer.Option(
            help="Version of a coordinator's experiment: best, latest, a round, the beginning of a SHA-256, average(N)."
        ),
    ] = "best",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of one batch.")] = 50,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the timed runs.")] = 1,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
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
        batch=batch,
        repeats=repeats,
        threads=threads,
    )
    whole = options.precision == "int8"
    heeded = QuantSettings(per_channel=per_channel or options.precision != "int8-dynamic")
    _require(whole or options.quantisation == heeded, "how to quantise", "--precision int8")
    _require(whole or calibration_data is None, "--calibration-data", "--precision int8")
    _require(bool(data or calibration_data or not experiment), "--experiment", "--data")
    _require(bool(data or not label), "--label", "--data")
    source = model_of(model, version, url, token, ca)
    read = source if isinstance(source, Path) else None
    _keep_apart(source, target, packed)
    if read is not None and read != Path(model):
        output.say(f"The model is {read}.")
    result = exported(
        source,
        options,
        examples=_examples(source, data, label, experiment),
        calibration=_examples(source, calibration_data, label, experiment, measured=False),
    )
    written = result.save(target)
    if packed is not None:
        from coterie.compute.bundle import make_bundle, write_bundle

        # What is measured in every call stands in no table by which a bundle would know its model as quantised.
        thresholds = options.thresholds if options.precision == "int8-dynamic" else None
        bundled = make_bundle(result.data, result.sample, reference=result.reference, thresholds=thresholds)
        write_bundle(packed, bundled)
    output.event("exported", model=model, source=read, path=written, bundle=packed, report=result.report.to_json())
    _print_report(output, result.report, written)
    if packed is not None:
        output.say(f"{packed}: {size(packed.stat().st_size)}, with checks")


def _require(met: bool, option: str, needed: str) -> None:
    """Refuse an option that would do nothing without another."""
    if not met:
        raise InputError(f"{option} has no effect without {needed}.", code="usage")


def _keep_apart(source: Path | bytes, target: Path, bundle: Path | None) -> None:
    """Refuse to write over the model that is read, and one file over the other."""
    if isinstance(source, Path) and source.resolve() in {target.resolve(), bundle and bundle.resolve()}:
        raise InputError(
            f"{source} is the model itself; the export would be written over it.",
            hint=f"Name another file: --out {source.stem}-small.onnx",
            code="file_unusable",
        )
    if bundle is not None and bundle.resolve() == target.resolve():
        raise InputError(
            f"{target} is named for both the model and the bundle.", hint="Name two files.", code="file_unusable"
        )


def _print_report(output: Output, report: "ExportReport", written: Path) -> None:
    output.table(("measured", "before", "after", "change"), report.rows_of_table(), empty="")
    output.say(f"{written}: {size(report.after.bytes)}, run by {report.runtime} alone")
    if not report.rows:
        output.say("Compared on random numbers; --data FILE measures accuracy on your rows.")


def _sizes(texts: list[str]) -> dict[str, int]:
    made: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isdecimal()):
            raise InputError(f"--size must be NAME=N, not {text}.", hint="For example: --size batch=8", code="usage")
        made[name] = int(number)
    return made


def _examples(
    source: Path | bytes, data: Path | None, label: str | None, experiment: str | None, *, measured: bool = True
) -> "Examples | None":
    """The rows of --data, each array under the name that the model has for it. Those that are not measured need no
    label, and may have it.
    """
    if data is None:
        return None
    from coterie.cli.export_rows import from_columns, from_schema
    from coterie.compute.onnx import load

    names = [given.name for given in load(source).inputs]
    if experiment is not None:
        from coterie.cli.loading import load_experiment

        loaded: Any = load_experiment(experiment)[0]
        return from_schema(data, loaded.schema, names)
    return from_columns(data, names, label, labelled=measured)
