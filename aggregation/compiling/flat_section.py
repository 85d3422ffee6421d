"""A section of an update as one flat vector, from what a method's ``finish`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie import errors
from coterie.aggregation.compiling.subset import names_of
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays


def flat_section(method: str, layout: Layout, spec: SectionSpec, sections: Mapping[str, Array | Arrays]) -> Array:
    """The section as a flat vector, ``[spec.length]``.

    method: its name, for the error.
    layout: orders tensors that are given by name.
    sections: what the method returned, by section.
    Raises errors.ExperimentError (``algorithm_sections``) for a section that is absent or of another length.
    """
    value = sections.get(spec.name)
    if isinstance(value, Mapping):
        covered = names_of(spec, layout)
        ordered = [value[name] for name in layout.names if name in value and name in covered]
        value = xp.concat([xp.reshape(tensor, (tensor.size,)) for tensor in ordered]) if ordered else None
    if value is None or value.shape != (spec.length,):
        found = "nothing" if value is None else str(list(value.shape))
        raise errors.ExperimentError(
            f"Algorithm {method!r} must finish with section {spec.name!r} of [{spec.length}]; it gave {found}.",
            code="algorithm_sections",
        )
    return value
