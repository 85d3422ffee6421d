"""From the aggregate of a round's updates to the next model version: the method's server part and the server optimizer.

Pure: vectors in, vectors out. Update files (`aggregate`) and simulation, whose updates are never files, both end here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.fold.fold import Folded
from coterie.aggregation.horizontal.server_part import Aggregates
from coterie.aggregation.methods import algorithm
from coterie.aggregation.plan.manifest import DELTA, Manifest
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState, ServerOptimizer
from coterie.aggregation.update_sections import drift_of, reads_drift
from coterie.protocol.delta import coarse
from coterie.protocol.finite import all_finite
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

_OPTIMIZER, _METHOD = "optimizer/", "method/"
_LOST = "broadcast/lost"
_EVERYTHING: Mapping[str, npt.NDArray[np.bool_]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class NextVersion:
    """The version that a round makes.

    weights: the new version, float32, flat as the layout orders it.
    state: the server's state for the next round, empty when the rules keep none.
    step: the change, before the weights are rounded to float32.
    """

    weights: npt.NDArray[np.float32] = field(repr=False)
    state: OptimizerState = field(repr=False)
    step: Vector = field(repr=False)

    @property
    def step_norm(self) -> float:
        """Euclidean length of the step."""
        # A scalar product by BLAS would wake threads that take the cores of others.
        return math.sqrt(np.einsum("i,i->", self.step, self.step))


def next_version(
    manifest: Manifest,
    *,
    base: npt.NDArray[np.float32],
    sections: Mapping[str, Vector],
    clients: int,
    weight: float,
    server: ServerOptimizer,
    state: OptimizerState,
    freshness: float = 1.0,
    drift: Vector | None = None,
    untrained: Mapping[str, npt.NDArray[np.bool_]] = _EVERYTHING,
) -> NextVersion:
    """The version after ``base``.

    base: the weights that the round began with, flat.
    sections: the aggregate of every section, float64.
    clients, weight: how many updates it is of, and the sum of their weights.
    state: what the round before returned, empty at first.
    freshness, drift: see `Aggregates`.
    untrained: see `Folded`.
    Guarantees: what no section and no update covers keeps its weights and the optimizer's state; buffers move by the
    mean of their changes; a plan with ``broadcast`` int8 gets a version that is the base plus levels of 8 bits (see
    protocol.delta), and what that loses is added to the next step.
    Raises errors.UpdateRefused (``not_finite``) when the new weights overflow.
    """
    together = Aggregates(sections=sections, clients=clients, weight=weight, freshness=freshness, drift=drift)
    step, kept = _step(manifest, together, server, state, untrained)
    new = np.empty_like(base)
    with np.errstate(over="ignore"):
        # Added in float64 and rounded once, without a vector of float64 in between.
        np.add(base, step, out=new, dtype=np.float64, casting="same_kind")
    if not all_finite(new):
        raise errors.UpdateRefused(
            f"The new weights are not finite at element {int(np.argmin(np.isfinite(new)))}.",
            hint="The training diverged: lower the clients' or the server's learning rate.",
            code="not_finite",
        )
    if manifest.broadcast == "int8":
        # Versions are exact sums of levels for who fetches them; what they lose comes back with the next step.
        wanted = base + step + state.get(_LOST, 0.0)
        order = _as_in_files(manifest.layout)
        new[order] = coarse(base[order], wanted[order])
        kept = {**kept, _LOST: wanted - new}
    return NextVersion(weights=new, state=kept, step=step)


def version_of(
    manifest: Manifest,
    folded: Folded,
    base: npt.NDArray[np.float32],
    server: ServerOptimizer,
    state: OptimizerState,
    version: Callable[[str], npt.NDArray[np.float32]],
) -> NextVersion:
    """The version that a round's fold makes of ``base``, and the server's state with what the fold keeps of it.

    state: the server's.
    version: the weights of an older version, by digest.
    Raises as `next_version` does.
    """
    drift = None
    if folded.older and reads_drift(manifest):
        drift = drift_of(base, ((version(digest), share) for digest, share in folded.older.items()))
    after = next_version(
        manifest,
        base=base,
        sections=folded.sections,
        clients=folded.clients,
        weight=folded.weight,
        server=server,
        state=state,
        freshness=folded.freshness,
        drift=drift,
        untrained=folded.untrained,
    )
    return replace(after, state={**after.state, **folded.state})


def _step(
    manifest: Manifest,
    together: Aggregates,
    server: ServerOptimizer,
    state: OptimizerState,
    untrained: Mapping[str, npt.NDArray[np.bool_]],
) -> tuple[Vector, OptimizerState]:
    """The change of the weights and the state to keep; nothing changes where nothing covers the layout."""
    layout = manifest.layout
    method = algorithm(manifest.algorithm.name, manifest.algorithm.parameters).server
    uncovered = np.ones(layout.size, np.bool_)
    placed = dict(together.sections)
    for spec in manifest.sections:
        if spec.slices:
            placed[spec.name] = _scatter(spec, together.sections[spec.name], layout.size)
            bare, at = untrained.get(spec.name), 0
            for start, stop in spec.slices:
                uncovered[start:stop] &= False if bare is None else bare[at : at + stop - start]
                at += stop - start
    statistics = np.zeros(layout.size, np.bool_)
    for name in manifest.buffers:
        start, stop = layout.slices[name]
        statistics[start:stop] = True
    kept = dict(_part(state, _OPTIMIZER) or server.init(layout.size))

    def optimize(delta: Vector) -> Vector:
        change, after = server.update(delta, kept)
        # State that is not one number for each weight, such as a count of steps, is the whole model's.
        stays = {name: uncovered if value.shape == uncovered.shape else False for name, value in after.items()}
        kept.update({name: _replaced_where(stays[name], value, kept[name]) for name, value in after.items()})
        return change

    # Running statistics move by the mean of their changes: no rule of a method, and no momentum, acts on them.
    change = placed[DELTA] if DELTA in placed else np.zeros(layout.size)
    changes = {**placed, DELTA: _replaced_where(statistics, change, 0.0)}
    aggregates = replace(together, sections=changes)
    step, own = method.apply(aggregates, _part(state, _METHOD) or method.init(layout), optimize)
    step = _replaced_where(statistics, step, change)
    named = {_OPTIMIZER + name: value for name, value in kept.items()}
    return _replaced_where(uncovered, step, 0.0), named | {_METHOD + name: value for name, value in own.items()}


def _as_in_files(layout: Layout) -> npt.NDArray[np.int64]:
    """The places of the layout's elements in the order of a version's file, which sorts tensors by name."""
    return np.concatenate([np.arange(*layout.slices[name]) for name in sorted(layout.names)])


def _replaced_where(mask: npt.NDArray[np.bool_] | bool, value: Vector, other: Vector | float) -> Vector:
    """The value, but for the other where the mask holds. Most models have no such place, and need no copy."""
    return np.where(mask, other, value) if np.any(mask) else value


def _scatter(spec: SectionSpec, section: Vector, size: int) -> Vector:
    """A section's elements where they belong in the whole vector; zeros elsewhere."""
    if spec.slices == ((0, size),):
        return section
    vector, at = np.zeros(size, np.float64), 0
    for start, stop in spec.slices:
        vector[start:stop] = section[at : at + stop - start]
        at += stop - start
    return vector


def _part(state: OptimizerState, prefix: str) -> OptimizerState:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
