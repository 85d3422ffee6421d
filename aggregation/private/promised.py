"""What leaves a client of its training under a promise of differential privacy, before any noise, clip, codec or mask.

No promise covers an answer that depends on whether training stayed finite: crafted weights make that a question about
single rows. So a training of which any number is not finite is one that changed nothing, and metric sums, which no
mechanism noises, stay where they are. Device and simulation both ask here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.protocol.finite import all_finite
from coterie.protocol.metrics import METRICS
from coterie.protocol.sections import SectionSpec

Sections = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Shown:
    """sections: what may be noised and sent. finite: whether the training was, which only the client's owner learns."""

    sections: Sections = field(repr=False)
    finite: bool


def promised(specs: Sequence[SectionSpec], sections: Sections, *, known_finite: frozenset[str] = frozenset()) -> Shown:
    """The sections of a training as a promise of privacy lets them leave.

    specs: of the plan. known_finite: sections that need no look.
    Guarantees: every number is finite and within its section's range; metric sums are zeros; nothing else tells whether
    anything of the training was not finite. Finite numbers in range are as they were.
    """
    seen = [name for name in sections if name != METRICS and name not in known_finite]
    finite = all(all_finite(sections[name]) for name in seen)
    shown = {
        name: vector if finite and name != METRICS else np.zeros_like(vector) for name, vector in sections.items()
    }
    for spec in specs:
        if spec.value_range is not None and spec.name in shown:
            shown[spec.name] = np.clip(shown[spec.name], *spec.value_range)
    return Shown(shown, finite)
