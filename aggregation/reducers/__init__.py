"""Reducers: rules that turn the updates of a round into one aggregate. `reducer` reads their text."""

from coterie.aggregation.reducers.aggregate import aggregate
from coterie.aggregation.reducers.reducer import Accumulator, Chunks, Reducer, ReducerInput, Vector
from coterie.aggregation.reducers.source import InMemory, UpdateSource
from coterie.aggregation.reducers.text import RULES, STEPS, reducer

__all__ = [
    "RULES",
    "STEPS",
    "Accumulator",
    "Chunks",
    "InMemory",
    "ReducerInput",
    "Reducer",
    "UpdateSource",
    "Vector",
    "aggregate",
    "reducer",
]
