"""The query as a value, and its answer out of a model version. Nothing here needs the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.analytics.bound import QueryNoise
from coterie.aggregation.analytics.noise import NOISE
from coterie.aggregation.analytics.rule import HIGH, LOW, SETTINGS, QueryRule
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

Answer = TypeVar("Answer")


def _as_it_is(answer: Any, clients: int | None) -> Any:
    return answer


@dataclass(frozen=True, eq=False)
class Query(Generic[Answer]):
    """A question about one column: a feature of the schema, every element of which counts, or the label.

    rule: without noise.
    noised(terms): the rule with noise.
    read(rule, total, settings): the answer, from the last round's sums and what devices would receive next.
    rounded(answer, clients): the same with what the sums rounded in its errors.
    """

    column: str
    rule: QueryRule
    noised: Callable[[QueryNoise], QueryRule]
    read: Callable[[QueryRule, Vector, FloatArrays], Answer]
    rounded: Callable[[Answer, int | None], Answer] = _as_it_is

    def answer(self, version: Mapping[str, npt.NDArray[Any]], *, clients: int | None = None) -> Answer:
        """The answer that a model version holds, with its errors: of a noised one the version says how large they are.

        clients: how many answered under secure aggregation, whose ring rounds the sums of a mean; 0 where sums came in
            the open. None when that is not known: the errors are then those of the number that rounds the most.
        Raises errors.InputError (``query_mismatch``) for what is none of this query's; errors.ExperimentError
        (``query_unanswered``) where noise hides what everything else is divided by.
        """
        noise = version.get(SETTINGS + NOISE)
        rule = self.rule if noise is None else self.noised(QueryNoise.from_settings(self.rule.name, noise))
        wanted = {HIGH, LOW, *(SETTINGS + name for name in rule.settings)}
        if set(version) != wanted or version[HIGH].shape != (rule.size,):
            raise errors.InputError(
                f"This version holds {', '.join(sorted(version))[:200] or 'nothing'}; the query {rule.name} has "
                f"{rule.size} sums under {HIGH}.",
                hint="Read the version of the experiment that was made from this very query.",
                code="query_mismatch",
            )
        total = version[HIGH].astype(np.float64) + version[LOW]
        return self.rounded(self.read(rule, total, {name: version[SETTINGS + name] for name in rule.settings}), clients)
