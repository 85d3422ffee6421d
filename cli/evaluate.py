"""`coterie evaluate`: what scores are worth against labels, and what a partner's columns add to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.output import JsonOption, Output
from coterie.errors import DataError, InputError, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from coterie.aggregation.evaluation.metrics import ScoreMetricName

_PARTNER = "partner"


def evaluate(
    table: Annotated[Path, typer.Argument(metavar="SCORES", help="A CSV file with a line of names (.csv, .csv.gz).")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column of labels: 0 and 1, or numbers.")],
    score: Annotated[str, typer.Option(metavar="COLUMN", help="The column of scores, or of predicted numbers.")],
    held_out: Annotated[
        str | None, typer.Option("--held-out", metavar="COLUMN", help="1 in rows that no model was trained on, else 0.")
    ] = None,
    alone: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The same rows, with the scores of a model without partners."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What --alone compares: auc, ks, log_loss, rmse, ... (default: auc, or rmse).")
    ] = None,
    numbers: Annotated[bool, typer.Option("--numbers", help="Labels are numbers or counts, not 0 and 1.")] = False,
    threshold: Annotated[
        list[float] | None, typer.Option(help="A score from which on to say 1 (default: 0.5); may be repeated.")
    ] = None,
    bands: Annotated[int, typer.Option(min=1, max=1000, help="Of scores, in tables and for stability.")] = 10,
    json: JsonOption = False,
) -> None:
    """Measure scores against labels, on this machine: nothing leaves it."""
    from coterie.aggregation.evaluation.evaluation import (
        AnyEvaluation,
        evaluate_classes,
        evaluate_numbers,
        stability,
    )
    from coterie.aggregation.evaluation.partner_value import partner_value
    from coterie.aggregation.evaluation.text import evaluation_text

    output = Output(json)
    metric_name = _metric(metric, alone, numbers=numbers)
    scores, labels, held = _rows(table, label, score, held_out, numbers=numbers)
    parts = {"all": slice(None)} if held is None else {"train": ~held, "held out": held}
    found: dict[str, AnyEvaluation] = {}
    for name, rows in parts.items():
        _require_both(table, label, labels[rows], name, numbers=numbers)
        found[name] = (
            evaluate_numbers(scores[rows], labels[rows])
            if numbers
            else evaluate_classes(scores[rows], labels[rows], bands=bands, thresholds=tuple(threshold or (0.5,)))
        )
        output.event("evaluation", part=name, **found[name].to_json())
    if not json:
        output.say(evaluation_text(found))
    if held is not None:
        moved = stability(scores[~held], scores[held], bands=bands)
        output.event("stability", index=moved)
        output.say(f"\nstability index, held out against train: {'-' if moved is None else f'{moved:.4f}'}")
    if alone is not None:
        other, truth, _ = _rows(alone, label, score, None, numbers=numbers)
        _require_same(table, alone, label, labels, truth)
        rows = slice(None) if held is None else held
        value = partner_value(
            lambda coalition: (scores if coalition else other)[rows], (_PARTNER,), labels[rows], metric=metric_name
        )
        output.event("partner_value", **value.to_json())
        output.say(f"\n{value.text()}")


def _rows(
    table: Path, label: str, score: str, held_out: str | None, *, numbers: bool
) -> "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_] | None]":
    """Scores, labels, and which rows are held out, checked."""
    from coterie.aggregation.evaluation.rows import class_labels, numbers_of
    from coterie.aggregation.vertical.tables import read_columns

    names = [label, score, *(() if held_out is None else (held_out,))]
    if len({*names}) < len(names):
        raise InputError("--label, --score and --held-out are different columns.", code="usage")
    read = read_columns(table, names, table.name)
    scores = numbers_of(read[score], f"{table.name}: score {score!r}")
    told = f"{table.name}: label {label!r}"
    labels = numbers_of(read[label], told) if numbers else class_labels(read[label], told)
    if held_out is None:
        return scores, labels, None
    held = class_labels(read[held_out], f"{table.name}: column {held_out!r}") == 1
    if held.all() or not held.any():
        raise DataError(
            f"{table.name}: column {held_out!r} is {int(held[0])} in every row.",
            hint="Leave --held-out away where all rows are of one kind.",
            code="data_classes",
            column=held_out,
        )
    return scores, labels, held


def _require_both(table: Path, label: str, labels: "NDArray[np.float64]", part: str, *, numbers: bool) -> None:
    if not numbers and (labels == labels[0]).all():
        rows = "row" if part == "all" else f"row of {part}"
        raise DataError(
            f"{table.name}: label {label!r} is {labels[0]:g} in every {rows}.",
            hint="Scores tell labels apart where both are there; check the column, and which rows the file has.",
            code="data_classes",
            column=label,
        )


def _require_same(
    table: Path, alone: Path, label: str, labels: "NDArray[np.float64]", others: "NDArray[np.float64]"
) -> None:
    """Raise DataError unless two files may be of the same rows, in one order."""
    if len(labels) != len(others):
        raise DataError(
            f"{table.name} has {len(labels)} rows, and {alone.name} {len(others)}.",
            hint="Give the scores of the same rows, in one order.",
            code="data_lengths",
        )
    differ = labels != others
    if differ.any():
        row = int(differ.argmax()) + 1
        raise DataError(
            f"{table.name} and {alone.name}: label {label!r} differs in row {row}.",
            hint="Give the scores of the same rows, in one order.",
            code="rows_differ",
            row=row,
        )


def _metric(name: str | None, alone: Path | None, *, numbers: bool) -> "ScoreMetricName":
    from coterie.aggregation.evaluation.metrics import METRICS

    if name is not None and alone is None:
        raise InputError("--metric has no effect without --alone: all figures are shown.", code="usage")
    wanted: str = name or ("rmse" if numbers else "auc")
    kind = "numbers" if numbers else "classes"
    known: dict[str, Any] = {each: each for each, metric in METRICS.items() if metric.labels == kind}
    if wanted not in known:
        near = nearest(wanted, known)
        raise InputError(
            f"There is no metric {wanted!r} of {kind}.",
            hint=f"Did you mean {near}?" if near else _listed([*known]),
            code="usage",
        )
    return known[wanted]


def _listed(names: Sequence[str]) -> str:
    return f"There are {', '.join(names)}."
