"""Steps and a rule, carried out over updates."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.reducers.part import ByCoordinate, Combination, MixingStep, UpdateRule
from coterie.aggregation.reducers.reducer import Reference, Vector
from coterie.aggregation.reducers.source import Beside, Block, UpdateSource, check_finite, combine, generator, gram
from coterie.protocol.arrays import Matrix

# Elements of a block of lanes: sorted where they lie in cache.
LANES = 1 << 18


@dataclass(frozen=True)
class Pipeline:
    """Steps, then a rule.

    name: its text.
    vector: the rule's reference, ``[length]`` float32, where there is one.

    Guarantees: the result depends on the updates alone, not on where they come from or in what blocks they are read;
    what an update holds cannot reach the result but by the rule.
    """

    name: str
    steps: tuple[MixingStep, ...]
    rule: UpdateRule
    vector: Block | None = None

    @property
    def fewest(self) -> int:
        """The least number of updates that can be aggregated."""
        return self._needs[0]

    @property
    def because(self) -> str:
        """Why it takes that many."""
        return self._needs[1]

    @property
    def _needs(self) -> tuple[int, str]:
        least, because = self.rule.fewest, self.rule.because
        for step in reversed(self.steps):
            before = step.before(least)
            if before > least:
                because = f"{because}; {step.because}"
            elif step.fewest > least:
                because = step.because
            least = max(before, step.fewest)
        return least, because

    @property
    def most(self) -> int | None:
        """The greatest number of updates that can be aggregated; None when there is no such number."""
        most = None if isinstance(self.rule, ByCoordinate) else self.rule.most
        for step in reversed(self.steps):
            most = None if most is None else step.up_to(most)
        return most

    @property
    def beyond(self) -> str:
        """Why it takes no more."""
        return "" if isinstance(self.rule, ByCoordinate) else self.rule.beyond

    def run(self, source: UpdateSource) -> Vector:
        """The aggregate, float64.

        Raises errors.UpdateRefused: ``too_few_updates`` (such as 2f ≥ n), ``too_many_updates``, ``not_finite``, or what
        the rule raises;
        errors.InputError (``reference_missing``, ``updates_shape``) for a reference that is not there or does not fit.
        """
        check_count(self.name, source.count, self.fewest, self.because)
        check_work(self.name, source.count, self.most, self.beyond)
        if self.vector is not None:
            check_reference(self.vector, source.length)
            source = Beside(source, self.vector)
        elif self.reference == "trusted":
            raise errors.InputError(
                f"{self.name} judges updates by one that is trusted, and none was given.",
                hint=f"aggregate({self.name!r}, updates, reference=update): train it on clean rows of your own.",
                code="reference_missing",
            )
        mixed, products = self._combined_steps(source)
        place = np.arange(source.count, dtype=np.intp) if source.order is None else source.order
        if not isinstance(self.rule, ByCoordinate):
            weights = self._weights(self.rule, _require_products(products))
            if mixed is not None:
                weights = weights @ mixed
            return combine(source, weights[np.argsort(place)])
        chosen = None if self.rule.choose is None else self.rule.choose(_require_products(products))
        if mixed is not None:
            # Mixed in the order of the rules: in another one sums differ by an ulp, and so would what ties.
            mixed, chosen = mixed if chosen is None else mixed[chosen], _order_or_none(place)
        elif chosen is not None:
            chosen = place[chosen]
        total = np.empty(source.length, np.float64)
        for start, lanes in _sorted_blocks(source, mixed, chosen):
            total[start : start + lanes.shape[0]] = self.rule.reduce(lanes)
        return total

    def _combined_steps(self, source: UpdateSource) -> tuple[Matrix | None, Matrix | None]:
        """The steps as one matrix, and the Gram matrix after them; None where neither is needed."""
        if not self.measures:
            return None, None
        products, mixed = gram(source), None
        if source.order is not None:
            products = products[np.ix_(source.order, source.order)]
        for step in self.steps:
            clients = products.shape[0] - (self.vector is not None)
            part = self._with_reference(step.mix(products[:clients, :clients], lambda: generator(source)))
            mixed = part if mixed is None else part @ mixed
            products = part @ products @ part.T
        return mixed, products

    def _weights(self, rule: Combination, products: Matrix) -> Vector:
        if rule.reference is None or self.vector is not None:
            return rule.weights(products)
        # Before the first round there was none: the reference is zero, and need not be read.
        return rule.weights(np.pad(products, (0, 1)))[:-1]

    def _with_reference(self, part: Matrix) -> Matrix:
        """A step's matrix over the updates and, unchanged after them, the reference."""
        if self.vector is None:
            return part
        whole = np.zeros((part.shape[0] + 1, part.shape[1] + 1))
        whole[:-1, :-1], whole[-1, -1] = part, 1.0
        return whole

    @property
    def measures(self) -> bool:
        """Whether it needs inner products of updates."""
        return bool(self.steps) or not isinstance(self.rule, ByCoordinate) or self.rule.choose is not None

    @property
    def reference(self) -> Reference | None:
        """What the rule sees beside the updates."""
        return None if isinstance(self.rule, ByCoordinate) else self.rule.reference


def check_reference(vector: Block, length: int) -> None:
    """Raise errors.InputError (``updates_shape``) unless a reference is as long as an update."""
    if vector.size != length:
        raise errors.InputError(
            f"The reference has {vector.size} elements, the updates {length}.", code="updates_shape"
        )


def check_count(name: str, count: int, fewest: int, because: str) -> None:
    """Raise errors.UpdateRefused (``too_few_updates``) when a rule has fewer updates than it needs."""
    if count < fewest:
        raise errors.UpdateRefused(
            f"{name} needs at least {fewest} updates, and there are {count}: {because}.",
            hint="Lower f, m or s, whichever it has, or let more clients take part.",
            code="too_few_updates",
        )


def check_work(name: str, count: int, most: int | None, beyond: str) -> None:
    """Raise errors.UpdateRefused (``too_many_updates``) when a rule has more updates than it can take."""
    if most is not None and count > most:
        raise errors.UpdateRefused(
            f"{name} can take at most {most} updates, and there are {count}: {beyond}.",
            hint="Put bucketing(s) before it, lower f, or choose nnm(f)+trimmed_mean(f).",
            code="too_many_updates",
        )


def _order_or_none(place: npt.NDArray[np.intp]) -> npt.NDArray[np.intp] | None:
    """None for places that are in order already, so that nothing need be copied."""
    return None if (place[:-1] < place[1:]).all() else place


def _require_products(products: Matrix | None) -> Matrix:
    if products is None:
        raise errors.InternalError("A rule that reads inner products was given none.")
    return products


def _sorted_blocks(
    source: UpdateSource, mixed: Matrix | None, chosen: npt.NDArray[np.intp] | None
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """The values of the chosen updates at each coordinate, mixed and sorted: lanes that lie in cache sort in a third of
    the time of columns.
    """
    narrow = None if mixed is None else mixed.astype(np.float32)
    rows = mixed.shape[0] if mixed is not None else source.count if chosen is None else chosen.size
    width = max(LANES // max(rows, 1), 64)
    for start, block in source.blocks():
        for low in range(0, block.shape[1], width):
            strip = block[:, low : low + width]
            lanes = _sorted_block(strip, start + low, narrow, chosen)
            lanes.sort(axis=1)
            yield start + low, lanes


def _sorted_block(
    strip: Block, start: int, mixed: npt.NDArray[np.float32] | None, chosen: npt.NDArray[np.intp] | None
) -> npt.NDArray[np.float32]:
    seen = strip if chosen is None else strip[chosen]
    if mixed is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            lanes = np.ascontiguousarray((mixed @ seen).T)
    else:
        lanes = np.ascontiguousarray(seen.T)
    # A sum of squares is finite only where every element is; where it is not, each is looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.dot(lanes.reshape(-1), lanes.reshape(-1))
    if not np.isfinite(square):
        check_finite(strip, start)
        if mixed is not None and not np.isfinite(lanes).all():
            lanes = np.ascontiguousarray((mixed.astype(np.float64) @ seen).T.astype(np.float32))
    return lanes
