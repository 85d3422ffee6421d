"""Federated analytics: questions about the clients' rows, asked without training.

query = quantiles("age", (0.5, 0.9), low=0, high=120)
experiment = ask(query, schema, clients=100)         # simulate(experiment, …) or submit(experiment, …)
query.answer(weights)                                # of the version that the experiment ends with

With ``privacy=UserLevel(...)`` the answer is noised for whole clients, and states its errors.

A coordinator rebuilds rules from here without the compiler, so `ask`, which makes experiments, is loaded when it is
asked for.
"""

from typing import TYPE_CHECKING, Any

from coterie.aggregation.analytics.bound import Shortened
from coterie.aggregation.analytics.count import Count, count
from coterie.aggregation.analytics.heavy_hitters import HeavyHitters, heavy_hitters
from coterie.aggregation.analytics.histogram import Histogram, histogram
from coterie.aggregation.analytics.mean import Mean, mean
from coterie.aggregation.analytics.quantiles import Quantile, Quantiles, quantiles
from coterie.aggregation.analytics.query import Query

if TYPE_CHECKING:
    from coterie.aggregation.analytics.asking import ask

__all__ = [
    "Count",
    "HeavyHitters",
    "Histogram",
    "Mean",
    "Quantile",
    "Quantiles",
    "Query",
    "Shortened",
    "ask",
    "count",
    "heavy_hitters",
    "histogram",
    "mean",
    "quantiles",
]


def __getattr__(name: str) -> Any:
    if name != "ask":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coterie.aggregation.analytics.asking import ask

    return ask
