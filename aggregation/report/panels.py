"""A history as panels of curves: what to draw, whoever draws it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coterie.aggregation.record import RoundRecord
from coterie.aggregation.report.hints import MANY, RAISE_NORM, clipped
from coterie.aggregation.report.run import ReportedRun
from coterie.protocol.spread import Spread

Points = tuple[tuple[int, float], ...]
_FIRST = ("loss", "accuracy")
_LARGEST = 1e300


@dataclass(frozen=True)
class Series:
    """One curve: (round, value) in the order of rounds.

    faint: of less weight than the others.
    """

    name: str
    points: Points
    faint: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis.

    unit: of the axis.
    marks: rounds that were abandoned.
    from_zero: whether the axis begins at 0, as amounts do.
    note: what to do about it, in a few words.
    """

    title: str
    series: tuple[Series, ...]
    unit: str = ""
    marks: tuple[int, ...] = ()
    from_zero: bool = field(default=False)
    note: str = ""


def panels(history: ReportedRun) -> tuple[Panel, ...]:
    """The panels of a run: each metric with its worst decile of clients, then bytes, seconds and clients per round; of
    secret sums the share of clients that were shortened to the public norm, of private runs what they have spent.

    Metrics that were never measured, and amounts that are always zero, have no panel.
    """
    measured = {name for record in history for name in (*record.metrics, *record.training, *record.fairness)}
    names = (*(name for name in _FIRST if name in measured), *sorted(measured - {*_FIRST}))
    abandoned = tuple(record.round for record in history if record.state == "abandoned")
    found = [Panel(name, _metric(history, name), marks=abandoned) for name in names]
    found += [
        Panel("bytes per round", _series_of_amounts(history, _BYTES), unit="MB", marks=abandoned, from_zero=True),
        Panel("seconds per round", _series_of_amounts(history, _SECONDS), unit="s", marks=abandoned, from_zero=True),
        Panel("clients per round", _series_of_amounts(history, _CLIENTS), marks=abandoned, from_zero=True),
        _clipped(history, abandoned),
        Panel("ε spent", _epsilon(history), marks=abandoned, from_zero=True),
    ]
    return tuple(panel for panel in found if any(series.points for series in panel.series))


def _clipped(history: ReportedRun, abandoned: tuple[int, ...]) -> Panel:
    """Drawn at 0 too: that a norm is wide enough is worth seeing."""
    points = tuple((one.round, 100 * one.clipped) for one in history if one.clipped is not None)
    note = RAISE_NORM if (clipped(history) or 0.0) >= MANY else ""
    series = Series("shortened to the public norm", points)
    return Panel("clipped clients", (series,), unit="%", marks=abandoned, from_zero=True, note=note)


def _epsilon(history: ReportedRun) -> tuple[Series, ...]:
    spent = [(one.round, one.epsilon, one.delta) for one in history if one.epsilon is not None]
    deltas = {delta for *_, delta in spent if delta is not None}
    name = f"spent, at δ {max(deltas):g}" if deltas else "spent"
    return (Series(name, _drawable_points((round, epsilon) for round, epsilon, _ in spent)),)


def _metric(history: ReportedRun, name: str) -> tuple[Series, ...]:
    series = (
        Series("evaluation", _drawable_points(history.curve(name))),
        Series("worst decile", _deciles(history, name, lambda spread: spread.worst_decile)),
        Series("best decile", _deciles(history, name, lambda spread: spread.best_decile), faint=True),
        Series("training", _drawable_points(history.curve(f"training.{name}")), faint=True),
    )
    return tuple(one for one in series if one.points)


def _drawable_points(points: Iterable[tuple[int, float]]) -> Points:
    """Without NaN, infinity and what is so large that no axis holds two of it: a run that diverges measures them."""
    return tuple((round, value) for round, value in points if abs(value) < _LARGEST)


def _deciles(history: ReportedRun, name: str, read: Callable[[Spread], float]) -> Points:
    return tuple((record.round, read(record.fairness[name])) for record in history if name in record.fairness)


_Read = Callable[[RoundRecord], float | None]
_BYTES: Sequence[tuple[str, _Read]] = (
    ("up", lambda record: record.bytes_up / 1e6),
    ("down", lambda record: record.bytes_down / 1e6),
)
_SECONDS: Sequence[tuple[str, _Read]] = (("seconds", lambda record: record.seconds),)
_CLIENTS: Sequence[tuple[str, _Read]] = (
    ("accepted", lambda record: record.accepted),
    ("failed", lambda record: record.failed),
)


def _series_of_amounts(history: ReportedRun, reads: Sequence[tuple[str, _Read]]) -> tuple[Series, ...]:
    series: list[Series] = []
    for name, read in reads:
        values = [(record.round, read(record)) for record in history]
        points = tuple((round, value) for round, value in values if value is not None)
        if any(value for _, value in points):
            series.append(Series(name, points))
    return tuple(series)
