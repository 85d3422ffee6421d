"""The query as a value, and its answer out of a model version. Nothing here needs the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.analytics.rule import HIGH, LOW, TOLD, Rule, Told
from coterie.aggregation.reducers import Vector

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class Query(Generic[Answer]):
    """A question about one column: a feature of the schema, every element of which counts, or the label.

    read(total, told): the answer, from the last round's sums and what devices would be told next.
    """

    column: str
    rule: Rule
    read: Callable[[Vector, Told], Answer]

    def answer(self, version: Mapping[str, npt.NDArray[Any]]) -> Answer:
        """The answer that a model version holds. Raises errors.InputError (``query_mismatch``) for what is none of this
        query's.
        """
        wanted = {HIGH, LOW, *(TOLD + name for name in self.rule.told)}
        if set(version) != wanted or version[HIGH].shape != (self.rule.size,):
            raise errors.InputError(
                f"This version holds {', '.join(sorted(version))[:200] or 'nothing'}; the query {self.rule.name} has "
                f"{self.rule.size} sums under {HIGH}.",
                hint="Read the version of the experiment that was made from this very query.",
                code="query_mismatch",
            )
        total = version[HIGH].astype(np.float64) + version[LOW]
        return self.read(total, {name: version[TOLD + name] for name in self.rule.told})
