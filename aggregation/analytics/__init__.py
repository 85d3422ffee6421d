"""Federated analytics: questions about the clients' rows, asked without training.

query = quantiles("age", (0.5, 0.9), low=0, high=120)
experiment = ask(query, schema, clients=100)         # simulate(experiment, …) or submit(experiment, …)
query.answer(weights)                                # of the version that the experiment ends with
"""

from coterie.aggregation.analytics.count import Count, count
from coterie.aggregation.analytics.heavy_hitters import HeavyHitters, heavy_hitters
from coterie.aggregation.analytics.histogram import Histogram, histogram
from coterie.aggregation.analytics.mean import Mean, mean
from coterie.aggregation.analytics.quantiles import Quantile, Quantiles, quantiles
from coterie.aggregation.analytics.query import Query, ask

__all__ = [
    "Count",
    "HeavyHitters",
    "Histogram",
    "Mean",
    "Quantile",
    "Quantiles",
    "Query",
    "ask",
    "count",
    "heavy_hitters",
    "histogram",
    "mean",
    "quantiles",
]
