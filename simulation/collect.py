"""The updates of a round on their way into the next version.

`Streamed` folds each update into the reducers as it arrives and forgets it, so a round needs the memory of a few models
however many clients take part. `Filed` keeps update files for rules that must see all updates, and hands them to the
coordinator's own numeric job. Where both can be used they give the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.aggregate import aggregate_updates
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.reducers import Accumulator, reducer
from coterie.aggregation.server_optimizers import ServerOptimizer, State
from coterie.aggregation.version import next_version
from coterie.protocol.metrics import MetricSums
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import read_file, write_file
from coterie.protocol.update import read_update
from coterie.simulation.versions import Versions
from coterie.simulation.work import Trained

_REDUCERS = {"weighted_mean": "mean", "sum": "sum"}


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """What became of a round's updates. version: the new one, kept already; state: of the server, for the next round;
    metrics: the training sums; rejected: how many updates were unusable.
    """

    version: str
    state: State
    metrics: Mapping[str, float]
    rejected: int


class Collector(Protocol):
    """Takes the updates of one round, in the order of the clients, and makes a version of them."""

    def add(self, trained: Trained) -> None:
        """Take in one update. An unusable one is counted as rejected, never half added."""
        ...

    def result(self, versions: Versions, server: ServerOptimizer, state: State) -> Aggregate:
        """The next version. Raises errors.UpdateRefused as `aggregate_updates` does."""
        ...


class Streamed:
    """Updates folded into one accumulator per section."""

    def __init__(self, manifest: Manifest, base: str, weight_cap: int) -> None:
        self._manifest = manifest
        self._base = base
        self._cap = weight_cap
        self._rules = {spec.name: reducer(_REDUCERS[spec.reduction]) for spec in manifest.sections}
        self._sums: dict[str, Accumulator] = {}
        self._weight = 0.0
        self._clients = 0
        self._refused: list[str] = []

    def add(self, trained: Trained) -> None:
        """Check the whole update, then add every section."""
        try:
            sections = self._checked(trained)
        except errors.UpdateRefused as error:
            self._refused.append(error.message)
            return
        weight = float(min(trained.weight, self._cap))
        for spec in self._manifest.sections:
            rule = self._rules[spec.name]
            before = self._sums.get(spec.name) or rule.init(spec.length)
            self._sums[spec.name] = rule.add(before, ((0, sections[spec.name]),), weight)
        self._weight += weight
        self._clients += 1

    def result(self, versions: Versions, server: ServerOptimizer, state: State) -> Aggregate:
        """See `Collector`."""
        manifest = self._manifest
        if not self._clients:
            why = f"; the first: {self._refused[0]}" if self._refused else "."
            raise errors.UpdateRefused(
                f"None of the {len(self._refused)} updates can be used{why}", code="nothing_usable"
            )
        sections = {name: self._rules[name].result(total) for name, total in self._sums.items()}
        after = next_version(
            manifest,
            base=manifest.layout.flatten(versions.read(self._base)),
            sections=sections,
            clients=self._clients,
            weight=self._weight,
            server=server,
            state=state,
        )
        return Aggregate(
            version=versions.add_vector(after.weights),
            state=after.state,
            metrics=MetricSums.from_vector(manifest.metrics, sections[METRICS]).sums,
            rejected=len(self._refused),
        )

    def _checked(self, trained: Trained) -> Mapping[str, NDArray[Any]]:
        specs = self._manifest.sections
        if trained.update is not None:
            update = read_update(trained.update, specs, plan=self._manifest.id, base=self._base)
            update.check_finite()
            return {spec.name: update.decode(spec.name) for spec in specs}
        for spec in specs:
            _check(spec, trained.sections[spec.name])
        return trained.sections


class Filed:
    """Updates as files, aggregated together by the coordinator's numeric job."""

    def __init__(self, manifest: Manifest, base: str, weight_cap: int, folder: Path) -> None:
        self._manifest = manifest
        self._base = base
        self._cap = weight_cap
        self._folder = folder
        self._paths: list[Path] = []

    def add(self, trained: Trained) -> None:
        """Write the update's file."""
        if trained.update is None:
            raise errors.InternalError("An update that is to be kept as a file must be encoded.")
        path = self._folder / f"{trained.task}.update"
        path.write_bytes(trained.update)
        self._paths.append(path)

    def result(self, versions: Versions, server: ServerOptimizer, state: State) -> Aggregate:
        """See `Collector`."""
        before = self._folder / "server_state.safetensors"
        if state:
            write_file(before, state)
        try:
            made = aggregate_updates(
                self._manifest,
                base=versions.file(self._base, self._folder),
                updates=self._paths,
                server=server,
                server_state=before if state else None,
                out=self._folder / "result",
                weight_cap=self._cap,
            )
        finally:
            for path in self._paths:
                path.unlink(missing_ok=True)
        return Aggregate(
            version=versions.add(Path(made.weights).read_bytes()),
            state={} if made.state is None else read_file(Path(made.state)),
            metrics=made.metrics,
            rejected=len(made.rejected),
        )


def _check(spec: SectionSpec, vector: NDArray[Any]) -> None:
    """Refuse what the wire would have refused."""
    if vector.shape != (spec.length,):
        raise errors.UpdateRefused(
            f"Section {spec.name!r} has {vector.size} elements; the plan says {spec.length}.", code="wrong_length"
        )
    # A sum of squares is finite only where every element is; where it overflows, each is looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.dot(vector, vector)
    if not np.isfinite(total) and not np.isfinite(vector).all():
        at = int(np.argmin(np.isfinite(vector)))
        raise errors.UpdateRefused(f"Section {spec.name!r} holds {vector[at]} at element {at}.", code="not_finite")
    if spec.value_range is not None:
        low, high = spec.value_range
        if not bool(((vector >= low) & (vector <= high)).all()):
            raise errors.UpdateRefused(f"Section {spec.name!r} leaves the range {low} to {high}.", code="out_of_range")
