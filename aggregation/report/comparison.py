"""Several runs side by side: their curves in common panels, and a line for each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.aggregation.report.panels import Panel, Series, panels
from coterie.aggregation.report.run import ReportedRun
from coterie.aggregation.report.svg import COLOURS
from coterie.errors import InputError

MOST_RUNS = len(COLOURS)


def compared(runs: Mapping[str, ReportedRun]) -> tuple[Panel, ...]:
    """A panel for each metric that was evaluated, and for bytes, seconds and privacy, with one curve for each run.

    runs: by the name that its curve gets. The first curve of a run's own panel stands for it: evaluation before
        training, bytes up before bytes down.
    Raises InputError for no run or more than MOST_RUNS.
    """
    if not 1 <= len(runs) <= MOST_RUNS:
        raise InputError(
            f"{len(runs)} runs cannot be compared in one picture.", hint=f"Name between 1 and {MOST_RUNS} of them."
        )
    found: dict[str, Panel] = {}
    curves: dict[str, dict[str, Series]] = {}
    for name, history in runs.items():
        for panel in panels(history):
            first = panel.series[0]
            says_it = first.name == "evaluation" or first.name in panel.title
            title = panel.title if says_it else f"{panel.title}: {first.name}"
            found.setdefault(title, Panel(title, (), unit=panel.unit, from_zero=panel.from_zero))
            curves.setdefault(title, {})[name] = Series(name, first.points)
    # A run without this curve keeps its place, so that its colour is the same in every panel.
    return tuple(
        replace(panel, series=tuple(curves[title].get(name, Series(name, ())) for name in runs))
        for title, panel in found.items()
    )


def summary(history: ReportedRun) -> dict[str, Any]:
    """What a run comes to: its rounds, bytes, seconds, last metrics and privacy spent; None for what it never told."""
    final = history.final
    priced = [record for record in history if record.epsilon is not None]
    return {
        "rounds": len(history),
        "committed": len(history.committed),
        "failed": sum(record.failed for record in history),
        "bytes_up": sum(record.bytes_up for record in history),
        "bytes_down": sum(record.bytes_down for record in history),
        "seconds": round(sum(record.seconds or 0.0 for record in history), 3),
        "loss": final.metrics.get("loss") if final else None,
        "accuracy": final.metrics.get("accuracy") if final else None,
        "epsilon": priced[-1].epsilon if priced else None,
        "delta": priced[-1].delta if priced else None,
        "reason": history.reason,
    }
