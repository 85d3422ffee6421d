"""Evaluations as tables of text."""

from collections.abc import Mapping, Sequence

from coterie.aggregation.evaluation.evaluation import AnyEvaluation, AtThreshold, ClassEvaluation, ScoreBand

_BAND = ("scores", "rows", "ones", "mean score", "rate", "lift", "reach", "gain")
_THRESHOLD = ("from score", "true 1", "false 1", "false 0", "true 0", "precision", "recall", "F1")


def evaluation_text(evaluations: Mapping[str, AnyEvaluation]) -> str:
    """A table of all figures side by side, and of classes a table of bands and one of thresholds for each.

    evaluations: by what their rows are called, such as "train" and "held out"; all of one kind.
    """
    names = next(iter(evaluations.values())).figures()
    columns = [each.figures() for each in evaluations.values()]
    rows = [[name.replace("_", " "), *(_shown(each[name]) for each in columns)] for name in names]
    parts = [_aligned(["", *evaluations], rows)]
    for told, each in evaluations.items():
        if isinstance(each, ClassEvaluation):
            parts.append(f"{told}, by bands of scores\n{_aligned(_BAND, [_band(band) for band in each.bands])}")
            at = [_threshold(threshold) for threshold in each.thresholds]
            parts += [f"{told}, saying 1 from a score on\n{_aligned(_THRESHOLD, at)}"] if at else []
    return "\n\n".join(parts)


def _band(band: ScoreBand) -> list[str]:
    ratios = (band.mean, band.rate, band.lift, band.reach, band.gain)
    return [f"{band.lowest:.4g} to {band.highest:.4g}", f"{band.weight:g}", f"{band.ones:g}", *map(_shown, ratios)]


def _threshold(at: AtThreshold) -> list[str]:
    counts = (at.true_ones, at.false_ones, at.false_zeros, at.true_zeros)
    return [f"{at.threshold:g}", *(f"{n:g}" for n in counts), *map(_shown, (at.precision, at.recall, at.f1))]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines: list[str] = []
    for first, *others in (head, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
