"""The answers to queries: as JSON values for programs, as tables with their errors for people."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.analytics import Count, HeavyHitters, Histogram, Mean, Quantiles, Shortened
from coterie.cli.output import Output

_BAR = 24
_ROUNDED = "Without noise ± is what sums round, as a rule: less with a range, --low to --high, close to the values."
_NOISE = "± is a standard error, of noise alone: twice as much holds 19 times of 20."


def answer_json(answer: object) -> Any:
    """An answer of `Query.answer` as JSON values, with its fields' names; of heavy hitters with ``sure_from``."""
    if isinstance(answer, np.ndarray):
        return cast(NDArray[Any], answer).tolist()
    if isinstance(answer, tuple):
        return [answer_json(one) for one in cast(tuple[object, ...], answer)]
    if not is_dataclass(answer) or isinstance(answer, type):
        return answer
    found = {field.name: answer_json(getattr(answer, field.name)) for field in fields(answer)}
    if isinstance(answer, HeavyHitters):
        # An object's names are texts: pairs keep the order and the numbers.
        found |= {"counts": [[value, count] for value, count in answer.counts.items()], "sure_from": answer.sure_from}
    return found


def say_answer(
    output: Output,
    column: str,
    answer: object,
    *,
    elements: Sequence[str],
    classes: Sequence[str],
) -> None:
    """An answer with its errors for people.

    elements: what the column's are called.
    classes: its values, if named.
    """
    match answer:
        case Count():
            output.say(f"{column}: {_plus_minus(answer.rows, answer.error)} rows.")
        case Mean():
            _say_mean(output, column, answer, elements)
        case Histogram():
            _say_histogram(output, column, answer, classes)
        case Quantiles():
            _say_quantiles(output, column, answer)
        case HeavyHitters():
            _say_heavy_hitters(output, column, answer, classes)
        case _:
            output.say(str(answer))
    shortened = getattr(answer, "shortened", None)
    if isinstance(shortened, Shortened):
        if isinstance(answer, Quantiles):
            output.say("The ± of a quantile is half of what lies between its bounds; of values it is a standard error.")
        else:
            output.say(_NOISE)
        output.say(
            f"About {max(shortened.clients, 0):.0f} ± {shortened.error:.2g} devices have more than the clip of "
            f"{shortened.clip:g} rows, and do not count in full."
        )


def _say_mean(output: Output, column: str, answer: Mean, elements: Sequence[str]) -> None:
    spread = np.sqrt(answer.variance)
    of_mean, of_variance = answer.error, answer.variance_error
    # Of the deviation, by error propagation: σ(√v) = σ(v) / 2√v; near zero it cannot be more than √σ(v).
    most = np.sqrt(of_variance)
    of_spread = np.minimum(np.divide(of_variance, 2 * spread, out=most.copy(), where=spread > 0), most)
    output.table(
        (column, "mean", "±", "deviation", "±"),
        [
            (name, f"{mean:.6g}", _error(error), f"{deviation:.6g}", _error(unsure))
            for name, mean, error, deviation, unsure in zip(
                elements, answer.mean, of_mean, spread, of_spread, strict=True
            )
        ],
        empty="",
    )
    output.say(f"{column}: {_plus_minus(answer.rows, answer.rows_error)} rows.")
    if answer.shortened is None:
        output.say(_ROUNDED)


def _say_histogram(output: Output, column: str, answer: Histogram, classes: Sequence[str]) -> None:
    most = max(float(answer.counts.max()), 1.0)
    counts = [(f"{count:.0f}", "█" * round(_BAR * max(float(count), 0.0) / most)) for count in answer.counts]
    # Of classes, bin j is class j.
    if len(classes) == len(counts) and list(answer.edges[:-1]) == list(range(len(counts))):
        output.table((column, "count", ""), list(zip(classes, *zip(*counts, strict=True), strict=True)), empty="")
    else:
        ends = [(f"{low:.6g}", f"{high:.6g}") for low, high in zip(answer.edges, answer.edges[1:], strict=False)]
        rows = [(*end, *count) for end, count in zip(ends, counts, strict=True)]
        output.table((f"{column} from", "to", "count", ""), rows, empty="")
    output.say(f"Below all bins: {answer.below:.0f}; above: {answer.above:.0f}.")
    if answer.error:
        output.say(f"Every count: ± {answer.error:.3g}; noise may make it negative.")


def _say_quantiles(output: Output, column: str, answer: Quantiles) -> None:
    output.table(
        (column, "value", "±", "at least", "below", "rank ±"),
        [
            (
                f"{one.level:.6g}",
                f"{one.value:.6g}",
                f"{one.error:.3g}",
                f"{one.lower:.6g}",
                f"{one.upper:.6g}",
                _error(one.rank_error),
            )
            for one in answer.quantiles
        ],
        empty="",
    )
    sure = ", all of them together with a probability of 95 % at least" if answer.shortened else ""
    output.say(
        f"Of {_plus_minus(answer.values, answer.values_error)} values. Each quantile lies between its bounds{sure}."
    )


def _say_heavy_hitters(output: Output, column: str, answer: HeavyHitters, classes: Sequence[str]) -> None:
    output.table(
        (column, "count", "±"),
        [
            (classes[value] if value < len(classes) else value, f"{count:.0f}", _error(answer.error))
            for value, count in answer.counts.items()
        ],
        empty=f"No value of {column} occurs so often.",
    )
    output.say(
        f"Of {_plus_minus(answer.values, answer.values_error)} values. Counts of {answer.threshold:.0f} or more are "
        "reported."
    )
    if answer.margin:
        output.say(f"What occurs {answer.sure_from:.0f} times or more is missed with a probability of 5 % at most.")


def _plus_minus(value: float, error: float) -> str:
    return f"{value:.0f} ± {error:.3g}" if error else f"{value:.0f}"


def _error(error: float) -> str:
    return f"{error:.3g}" if error else "exact"
