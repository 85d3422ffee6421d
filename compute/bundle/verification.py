"""Whether a model, or a converted form of it, still gives the answers of its bundle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from coterie.compute.bundle.bundle import Bundle
from coterie.compute.bundle.quantisation import quantisation_table
from coterie.compute.export.bare_runs import infer_bare
from coterie.compute.export.comparison import Similarity, similarity
from coterie.compute.ir import NDArray

Runner: TypeAlias = Callable[[Mapping[str, NDArray]], Mapping[str, NDArray]]
"""A loaded model: inputs by name to outputs by name."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found. similarities: of every output that could be compared. misses: what does not hold, in words."""

    similarities: Mapping[str, Similarity]
    misses: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything holds."""
        return not self.misses


def verify(bundle: Bundle, run: Runner | None = None) -> Verification:
    """Compare with the bundle's answers.

    run: what runs the model; a bare ONNX Runtime in a process of its own runs the bundle's ONNX file unless given. That
    file's quantisation table must be the bundle's as well.

    Guarantees: a result that is absent, of another shape, not finite where the answer is, or less alike than the
    thresholds say is a miss and no exception. Raises GraphRefused where the ONNX file itself does not run.
    """
    misses: list[str] = []
    if run is None and quantisation_table(bundle.model) != bundle.table:
        misses.append("the quantisation table is not that of the model")
    found = infer_bare(bundle.model, bundle.inputs) if run is None else run(bundle.inputs)
    similarities: dict[str, Similarity] = {}
    for name, answer in bundle.outputs.items():
        if name not in found:
            misses.append(f"output {name!r} is absent")
        elif (given := np.asarray(found[name])).shape != answer.shape:
            misses.append(f"output {name!r} is {list(given.shape)}, not {list(answer.shape)}")
        else:
            similarities[name] = similarity(answer, given)
            if told := bundle.thresholds.misses(similarities[name]):
                misses.append(f"output {name!r}: {told}")
    return Verification(similarities=similarities, misses=tuple(misses))
