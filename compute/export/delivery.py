"""From a trained model to the file that is delivered, with proof that it is still the same model."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from coterie.compute.export.any_batch import open_batch
from coterie.compute.export.bare_runs import BareRun, run_bare
from coterie.compute.export.comparison import Thresholds, similarity, worst
from coterie.compute.export.examples import Examples, Metric, answers, joined, score, synthetic
from coterie.compute.export.names import described, name_weights
from coterie.compute.export.options import ExportOptions
from coterie.compute.export.report import ExportReport, Figures, counted
from coterie.compute.export.source import ModelSource, Opened, open_model
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray, Type
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes.cost import flops
from coterie.compute.passes.inference import in_float16, optimise_for_inference, optimise_for_integers
from coterie.compute.quant.dynamic import quantise_dynamic
from coterie.errors import GraphRefused, InputError, StorageError

_REFERENCE_ROWS = 64  # that are computed on NumPy, which takes its time
_INTEGERS = frozenset({"int8", "int8-dynamic"})
_SHAPED = frozenset({"reshape", "transpose", "astype"})


@dataclass(frozen=True, kw_only=True)
class Exported:
    """data: the bytes of the ONNX file. report: what it is beside the model before. reference: the file in float32, the
    same where no fewer digits were asked for. sample: a batch of the rows that were compared, by input name.
    """

    data: bytes
    report: ExportReport
    reference: bytes
    sample: Mapping[str, NDArray]

    def save(self, path: str | Path) -> Path:
        """Write the file, whole or not at all, and return its path. Raises StorageError."""
        target = Path(path)
        partial = target.with_name(f"{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(self.data)
            partial.replace(target)
        except OSError as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise StorageError(f"The exported model cannot be written to {target}: {error.strerror}.") from error
        return target


def export(
    source: ModelSource,
    options: ExportOptions | None = None,
    *,
    examples: Examples | None = None,
    calibration: Examples | None = None,
) -> Exported:
    """A model as a file for inference: all passes for inference, then the precision that the options ask for.

    source: an ONNX file of operator set 13 to 21 (a path, or its bytes; what ``save_infer`` and ``coterie models
    download`` write, and those of other exporters), or a graph whose weights are constants. examples: rows to measure
    on; without them a few batches of random numbers are compared, and there is no score. calibration: rows that int8
    looks at; those of ``examples`` when absent.

    Guarantees: the file has the inputs and outputs of the model, of the same names, dtypes and order (an output of a
    single number has the shape [1]), and the metadata of the model's file. It needs ONNX Runtime alone: it was run so,
    in a process of its own, and is as much like the model's NumPy reference (on the first rows) and like the model's
    own file (on all rows) as ``options.thresholds`` asks. Otherwise GraphRefused (code ``export_differs``) is raised,
    and there is no file. A file for batches of any size was also run on several rows at once, which had the answers
    that each has alone.

    Raises GraphRefused for a graph that trains (code ``training_graph``), that cannot be imported, that a bare runtime
    does not run, or that cannot be for batches of any size (code ``batch_fixed``); DataError for examples that do not
    fit; InputError for a size that is missing, and for int8 without examples (code ``calibration_missing``).
    """
    options = ExportOptions() if options is None else options
    opened = open_model(source, options.sizes, rows=1 if options.batch == "any" else None)
    types = {name: value.type for name, value in opened.graph.inputs.items()}
    batches = synthetic(types) if examples is None else examples.batches(types)
    optimise = optimise_for_integers if options.precision in _INTEGERS else optimise_for_inference
    graph = optimise(opened.graph)
    data = reference = _written(graph, opened, options)
    calibrated = 0
    if options.precision == "float16":
        graph = in_float16(graph)
        data = _written(graph, opened, options)
    elif options.precision == "int8":
        data, calibrated = _in_int8(data, types, examples if calibration is None else calibration, options)
    elif options.precision == "int8-dynamic":
        data = quantise_dynamic(data, per_channel=options.quantisation.per_channel)
    data = described(data, opened.metadata)
    report = _measured(opened, graph, data, batches, examples, options, calibrated)
    if missed := options.thresholds.misses(worst([report.parity, report.agreement])):
        raise GraphRefused(
            f"The exported file is another model: its {missed}.",
            hint="For int8, calibrate on more rows or choose another calibration; else export with more digits.",
            code="export_differs",
        )
    if options.batch == "any":
        _require_same_together(opened, data, batches, options.thresholds)
    return Exported(data=data, report=report, reference=reference, sample=batches[0])


def _written(graph: Graph, opened: Opened, options: ExportOptions) -> bytes:
    def write(of: Graph) -> bytes:
        return to_onnx(of, name="infer", target=options.target)

    data = open_batch(graph, lambda of: write(optimise_for_inference(of))) if options.batch == "any" else write(graph)
    return name_weights(data, opened.graph, opened.weights)


def _require_same_together(
    opened: Opened, data: bytes, batches: Sequence[Mapping[str, NDArray]], thresholds: Thresholds
) -> None:
    """Raise unless rows have the answers in one batch that they have each alone, in the model's own file too where it
    takes such batches. In one where a row's answer depends on the others they have not.
    """
    some = batches[:_REFERENCE_ROWS]
    batch = {name: np.concatenate([each[name] for each in some]) for name in some[0]}
    (alone,) = run_bare([data], some)
    together = run_bare([data, *([opened.file] if opened.any_rows else [])], [batch], outputs=list(alone.outputs))
    compared = (
        similarity(np.concatenate(list(rows)), run.outputs[name][0])
        for run in together
        for name, rows in alone.outputs.items()
        if run.outputs[name][0].size == sum(row.size for row in rows)
    )
    if missed := thresholds.misses(worst(compared)):
        raise GraphRefused(
            f"Rows in one batch have other answers than each alone: the {missed}.",
            hint="Export it for one size of batch, with batch='fixed'.",
            code="export_differs",
        )


def _in_int8(
    data: bytes, types: Mapping[str, Type], rows: Examples | None, options: ExportOptions
) -> tuple[bytes, int]:
    from coterie.compute.quant.ptq import quantise

    batches = rows.batches(types, most=options.calibration_rows) if rows is not None else []
    if not batches and options.quantisation.activations is not None:
        raise InputError(
            "int8 needs rows to calibrate on: the range of every activation is measured.",
            hint="Give examples (on the command line, --data), or export in float16.",
            code="calibration_missing",
        )
    seen = 0 if rows is None else min(rows.rows, options.calibration_rows)
    return quantise(data, batches, options.quantisation), seen


def _measured(
    opened: Opened,
    graph: Graph,
    data: bytes,
    batches: Sequence[Mapping[str, NDArray]],
    examples: Examples | None,
    options: ExportOptions,
    calibrated: int,
) -> ExportReport:
    """Both files on all rows in a bare runtime, and the first rows on the NumPy reference."""
    before, after = run_bare(
        [opened.file, data],
        batches,
        outputs=list(opened.graph.outputs),
        repeats=options.repeats,
        threads=options.threads,
    )
    shape = next(iter(opened.graph.inputs.values())).type.shape
    size = shape[0] if shape else 1
    rows = len(batches) * size if examples is None else examples.rows
    reference = _reference(opened.graph, batches[: max(_REFERENCE_ROWS // size, 1)])
    numbers = [name for name, value in opened.graph.outputs.items() if value.type.is_float] or list(reference)
    first = next(iter(reference))
    outputs = [joined(run.outputs[first], rows) for run in (before, after)]
    classes = _classes(outputs[0])
    labels = None if examples is None else examples.labels
    metric, scores = _scores(outputs, labels, _halfway(opened.graph))
    return ExportReport(
        precision=options.precision,
        before=_figures(_bytes_of(opened), opened.bytes, flops(opened.graph), before, scores[0]),
        after=_figures(data, len(data), None if options.precision in _INTEGERS else flops(graph), after, scores[1]),
        batch=size,
        rows=0 if examples is None else rows,
        metric=metric,
        same_answers=float((answers(outputs[0]) == answers(outputs[1])).mean()) if classes else None,
        parity=worst(
            similarity(expected, after.outputs[name][: len(expected)].reshape(expected.shape))
            for name, expected in reference.items()
            if name in numbers
        ),
        agreement=worst(
            similarity(given := before.outputs[name], after.outputs[name].reshape(given.shape)) for name in numbers
        ),
        calibrated=calibrated,
        runtime=f"onnxruntime {after.runtime}",
        threads=options.threads,
    )


def _reference(graph: Graph, batches: Sequence[Mapping[str, NDArray]]) -> dict[str, NDArray]:
    """What the NumPy reference answers, [batches, *shape] by output."""
    answered = [interpret(graph, batch) for batch in batches]
    return {name: np.stack([each[name] for each in answered]) for name in graph.outputs}


def _classes(outputs: NDArray) -> bool:
    """Whether outputs are of a classifier: several numbers, or a whole one, for each row."""
    return outputs.dtype.kind != "f" or (outputs.ndim > 1 and outputs.shape[-1] > 1)


def _halfway(graph: Graph) -> float:
    """Where one number a row says neither class: 0.5 for a probability, which a sigmoid makes, and 0 for a logit."""
    producers = graph.producers()
    made = producers.get(next(iter(graph.outputs.values())))
    while made is not None and made.primitive in _SHAPED:
        made = producers.get(made.inputs[0])
    return 0.5 if made is not None and made.primitive == "sigmoid" else 0.0


def _scores(outputs: list[NDArray], labels: NDArray | None, halfway: float) -> tuple[Metric | None, list[float | None]]:
    if labels is None:
        return None, [None, None]
    (metric, before), (_, after) = (score(found, labels, halfway=halfway) for found in outputs)
    return metric, [before, after]


def _figures(data: bytes, size: int, operations: int | None, run: BareRun, found: float | None) -> Figures:
    parameters, operators = counted(data)
    return Figures(
        bytes=size,
        parameters=parameters,
        operators=operators,
        operations=operations,
        milliseconds=median(run.milliseconds),
        score=found,
    )


def _bytes_of(opened: Opened) -> bytes:
    return opened.file if isinstance(opened.file, bytes) else opened.file.read_bytes()
