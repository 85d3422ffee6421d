"""The bundle as a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType

from coterie.compute.bundle.quantisation import QuantisedTensor, quantisation_table
from coterie.compute.export.bare_runs import infer_bare
from coterie.compute.export.comparison import Thresholds
from coterie.compute.ir import NDArray
from coterie.errors import InputError

FLOAT = Thresholds(cosine=0.999, euclidean=0.99)
"""What a model that is not quantised must reach, unless told otherwise."""
QUANTISED = Thresholds(cosine=0.90, euclidean=0.55)
"""What a quantised one must reach: the thresholds that the tpu-mlir compiler checks its int8 models with."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """A model and how to check it.

    model: the ONNX file. table: its quantisation table. inputs, outputs: a batch of every input by name, and the right
    answers by output name. thresholds: how much a run must be like the right answers. converted: forms of the model for
    chips, by the converter's name; opaque bytes.

    Raises InputError for a bundle that nothing could fail: without answers, or with thresholds that are no numbers.
    """

    model: bytes
    table: tuple[QuantisedTensor, ...]
    inputs: Mapping[str, NDArray]
    outputs: Mapping[str, NDArray]
    thresholds: Thresholds
    converted: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if not self.outputs:
            raise InputError("A bundle needs at least one answer, or every model would pass.")
        if not (isfinite(self.thresholds.cosine) and isfinite(self.thresholds.euclidean)):
            raise InputError(f"The thresholds of a bundle must be finite numbers, got {self.thresholds}.")


def make_bundle(
    model: bytes,
    inputs: Mapping[str, NDArray],
    *,
    reference: bytes | None = None,
    thresholds: Thresholds | None = None,
) -> Bundle:
    """A bundle of a model, with answers of its reference.

    inputs: a batch of every input by name, of the model's own shapes. reference: the model before quantisation, which
    gives the right answers in a bare ONNX Runtime; the model itself unless given. thresholds: those of ``QUANTISED``
    for a model with a quantisation table and of ``FLOAT`` for another one, unless given.

    The model itself is not verified here: ``verify`` does. Raises GraphRefused for a graph that a bare ONNX Runtime
    does not run on these inputs, InputError for a reference with other outputs.
    """
    table = quantisation_table(model)
    outputs = infer_bare(model if reference is None else reference, inputs)
    if reference is not None:
        own = infer_bare(model, inputs)
        if {name: value.shape for name, value in own.items()} != {name: v.shape for name, v in outputs.items()}:
            raise InputError(
                f"make_bundle: the reference gives {', '.join(outputs)}, the model {', '.join(own)}, or other shapes.",
                hint="Give the model from which the quantised one was made.",
            )
    chosen = thresholds or (QUANTISED if table else FLOAT)
    return Bundle(model=model, table=table, inputs=dict(inputs), outputs=outputs, thresholds=chosen)
