"""What a query is to devices and server: what each row adds to, and what becomes of the sums.

A query needs no graph of a kind of its own. Let θ be a vector of zeros and φ(row) what the row adds; the gradient of
the linear loss −⟨θ, φ(row)⟩ with respect to θ, summed over a device's rows, is −Σ φ(row). So a query is compiled like
any model, a device runs it like any task, and whatever holds for the sections of updates holds for it.

The state of a query is its model version: ``total/high`` + ``total/low`` are the sums of the last round in float32
halves (48 significant bits together), ``settings/<name>`` is what devices are told in the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from coterie.aggregation.analytics.bound import QueryBound
from coterie.aggregation.analytics.places import places
from coterie.aggregation.horizontal.algorithm import Algorithm, Begin, ClientPart, Finish, Finished, Rules, Shapes
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA, Manifest
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.arrays import ArraysByName, FloatArrays
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays, MethodTerms
    from coterie.compute.array import Array
    from coterie.compute.optim.optimizer import Optimizer

TALLY = "tally"
"""The section of an update, and the parameter of the linear loss."""
SUM = "tally.sum"
"""The optimizer's state: what has been added so far."""
HIGH, LOW, SETTINGS = "total/high", "total/low", "settings/"
LARGEST_EXACT = 1 << 24
"""float32 holds every whole number up to here."""
MOST_COMPARED = 1 << 24
"""Numbers that a device holds while it compares a batch: 64 MiB of float32."""


def _unchanged_settings(total: Vector, settings: FloatArrays, round: int) -> FloatArrays:
    return settings


class QuerySums(Protocol):
    """What server and devices must know of sums, whatever each row adds to them; `QueryRule` says what the fields are.

    largest: what a client's sums may reach; a larger one is refused.
    clipped: whether the sums travel as the change of the version, shortened to a public norm, so that noise can be made
        for them that hides a client; the sums of all are then estimated.
    bound: how a client weighs and shortens them itself, and says that it did; None where they are sent as they are.
    samples: whether some of a client's rows will do, as many as the experiment's ``max_steps`` let it take.
    """

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, float]: ...
    @property
    def size(self) -> int: ...
    @property
    def settings(self) -> FloatArrays: ...
    @property
    def advance(self) -> Callable[[Vector, FloatArrays, int], FloatArrays]: ...
    @property
    def rounds(self) -> int: ...
    @property
    def whole(self) -> bool: ...
    @property
    def largest(self) -> int: ...
    @property
    def clipped(self) -> bool: ...
    @property
    def bound(self) -> QueryBound | None: ...
    @property
    def samples(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryRule:
    """A query by its name and numbers, apart from the column that it is asked of.

    size: how many sums there are.
    settings: the first values of what devices receive.
    contribute(values, settings): what each row adds, ``[B, size]``, from the ``[B, elements]`` values of its column.
    advance(total, settings, round): what devices receive after the round (counted from 1).
    rounds: how many there must be.
    whole: whether all sums are whole numbers.
    elements: how many numbers a row of the column must have; any when None. A client's sums may reach 2**24, up to
        where float32 holds every whole number; larger ones are refused.
    bound: of a noised query, else None.
    """

    name: str
    parameters: Mapping[str, float]
    size: int
    contribute: Callable[[Array, Arrays], Array]
    settings: FloatArrays
    advance: Callable[[Vector, FloatArrays, int], FloatArrays] = _unchanged_settings
    rounds: int = 1
    whole: bool = True
    elements: int | None = None
    bound: QueryBound | None = None
    largest: int = LARGEST_EXACT
    samples: bool = False

    @property
    def clipped(self) -> bool:
        """Whether it is noised."""
        return self.bound is not None


def largest_of(clients: int) -> int:
    """What each of so many clients' sums may reach, so that the sums over all of them keep below 2**32."""
    return min(LARGEST_EXACT, 1 << int(math.log2(((1 << 32) - 1) // max(clients, 1))))


def question_of(manifest: Manifest) -> str:
    """Which question a plan asks, as ``histogram``; empty where it trains a model. That it asks one is seen from what
    its versions hold, which one is the word of whoever signed the plan.
    """
    asks = any(tensor.name == HIGH for tensor in manifest.layout.tensors)
    return manifest.algorithm.name if asks else ""


def shapes_of(rule: QuerySums) -> dict[str, tuple[int, ...]]:
    """Tensors of a version that answers."""
    return {
        HIGH: (rule.size,),
        LOW: (rule.size,),
        **{SETTINGS + name: value.shape for name, value in rule.settings.items()},
    }


def method(rule: QuerySums) -> Algorithm:
    """The sums as an algorithm: devices add up, the server adds up, nothing is trained."""
    section = DELTA if rule.clipped else TALLY
    version = shapes_of(rule)
    length = sum(map(math.prod, version.values()))

    def initial(draw: Callable[[int], ArraysByName]) -> ArraysByName:
        return {SETTINGS + name: value for name, value in rule.settings.items()}

    def sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
        whole = SectionSpec.over(section, layout)
        if rule.clipped:
            return (whole,)
        return (
            SectionSpec(
                name=TALLY,
                length=whole.length,
                slices=whole.slices,
                segments=whole.segments,
                rows=whole.rows,
                reduction="sum",
                denominator=None,
                value_range=(0.0, float(rule.largest)),
            ),
        )

    def finish(context: Finish) -> Finished:
        from coterie.compute import numpy as xp

        sums = context.optimizer[SUM]
        if not rule.clipped:
            zeros = {name: xp.zeros(shape) for name, shape in version.items()}
            return Finished(sections={section: {**zeros, HIGH: sums}}, client_state={})
        sent = sums if rule.bound is None else rule.bound.encode(sums)
        source = np.full(length, rule.size, np.int32)  # everywhere the zero behind the sums
        source[places(rule.size, length)] = np.arange(rule.size)
        laid = xp.take(xp.concat([sent, xp.zeros((1,))]), xp.asarray(source), axis=0)
        change: dict[str, Array] = {}
        at = 0
        for name, shape in version.items():
            change[name] = xp.reshape(laid[at : at + math.prod(shape)], shape)
            at += math.prod(shape)
        return Finished(sections={section: change}, client_state={})

    def init(layout: Layout) -> OptimizerState:
        return {"version": _version_vector(rule, np.zeros(rule.size), rule.settings), "round": np.zeros(1)}

    def apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
        number = int(state["round"][0]) + 1
        total = aggregates.sections[section]
        # Clipped ones are the mean of what a public number of clients sent.
        total = total[places(rule.size, length)] * aggregates.clients if rule.clipped else total[: rule.size]
        total = total if rule.bound is None else rule.bound.decode(total)
        settings = rule.advance(total, _settings_of(rule, state["version"]), number)
        after = _version_vector(rule, total, settings)
        return after - state["version"], {"version": after, "round": np.array([float(number)])}

    def tensors_of(base: Arrays) -> Arrays:
        """The tensors of the linear loss: nothing counted yet, and what devices are told."""
        from coterie.compute import numpy as xp

        return {TALLY: xp.zeros((rule.size,)), **{SETTINGS + name: base[SETTINGS + name] for name in rule.settings}}

    def start(context: Begin) -> Arrays:
        return tensors_of(context.base)

    return Algorithm(
        name=rule.name,
        parameters=rule.parameters,
        client=ClientPart(
            version=lambda shapes: version,
            initial=initial,
            start=start,
            optimizer=lambda given: _sum_optimizer(rule.whole),
            sections=sections,
            finish=finish,
            evaluated=lambda context: tensors_of(context.version),
            deployed=lambda context: (tensors_of(context.version),),
            statistics=False,
        ),
        server=ServerPart(init=init, apply=apply, reads=(section,)),
        needs=lambda terms: _needs(rule, terms),
    )


def _sum_optimizer(whole: bool) -> Optimizer:
    """An optimizer that moves nothing and adds up what the rows add. Whole numbers stay exact: the batch's mean times
    its weight is rounded to what it was before it was divided, which a batch of `most_rows` allows.
    """
    from coterie.compute import numpy as xp
    from coterie.compute.optim.optimizer import Optimizer, scaled

    def init(params: Arrays) -> dict[str, Array]:
        return {SUM: xp.zeros(params[TALLY].shape)}

    def weighted(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        added = -scaled(active * weight, grads[TALLY])
        return dict(params), {SUM: state[SUM] + (xp.round(added) if whole else added)}

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        return weighted(grads, state, params, hyper, active, xp.ones((1,)))

    return Optimizer(name="sum", hyper={}, init=init, update=update, weighted=weighted)


def most_rows(rule: QueryRule, elements: int) -> int:
    """Rows of a batch whose sums stay exact: each of them, up to rows · elements, has gone through rows + 3 roundings
    of float32 before it is rounded to a whole number, and one row through none. Never so many that comparing them takes
    more than `MOST_COMPARED` numbers, but at least one.
    """
    room = max(1, MOST_COMPARED // (elements * rule.size))
    if not rule.whole:
        return room
    exact = 1
    while exact < room and (exact + 1) * (exact + 4) * elements < LARGEST_EXACT // 2:
        exact += 1
    return exact


def _version_vector(rule: QuerySums, total: Vector, settings: FloatArrays) -> Vector:
    """A version's numbers in the order of its layout, each one a float32."""
    high = total.astype(np.float32)
    low = (total - high).astype(np.float32)
    return np.concatenate([high, low, *(settings[name].reshape(-1) for name in rule.settings)]).astype(np.float64)


def _settings_of(rule: QuerySums, version: Vector) -> FloatArrays:
    settings: dict[str, npt.NDArray[np.float32]] = {}
    at = 2 * rule.size
    for name, first in rule.settings.items():
        settings[name] = version[at : at + first.size].astype(np.float32).reshape(first.shape)
        at += first.size
    return settings


def _needs(rule: QuerySums, terms: MethodTerms) -> Rules:
    e, training, wanted = terms, terms.training, rule.rounds
    return (
        (
            training.epochs == 1 and (training.max_steps is None or rule.samples),
            "a query goes through every row once; set epochs=1 and no max_steps",
        ),
        (training.holdout == 0, "a query asks all rows; set holdout=0"),
        (e.rounds.rounds == wanted, f"the query {rule.name} takes {wanted} rounds, not {e.rounds.rounds}"),
        (e.rounds.evaluate_every == 0 and not e.central, "a query has nothing to evaluate; evaluate_every=0"),
        (e.rounds.mode == "synchronous", "a query's updates must answer the same question; its mode is synchronous"),
        (tuple(e.codecs) == ("float32",), "a query's sums are exact; its only codec is float32"),
        (e.broadcast == "float32", "a query's version is its answer; its broadcast is float32"),
        (not e.own_weights, "a query starts from nothing; leave initial out"),
    )
