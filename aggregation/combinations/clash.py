"""What makes a rule of two wishes that exclude each other, and what several tables of them have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coterie.aggregation.horizontal.algorithm import Rules, Shapes
from coterie.aggregation.selection import selector_of
from coterie.aggregation.terms import Terms
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.sections import SectionSpec

IN_ROUNDS: Final = 'choose mode="synchronous"'
SELECT_BLINDLY: Final = "choose uniform, weighted, cyclic or least_recent"


@dataclass(frozen=True)
class Clash:
    """Two wishes that exclude each other.

    holds(terms): what of it is in the way, as the researcher wrote it; None where nothing is.
    because: why.
    instead: what to choose.
    """

    holds: Callable[[Terms], str | None]
    because: str
    instead: str


def rules_of(table: tuple[Clash, ...], terms: Terms, other: str, way_out: str = "") -> Rules:
    """The table as rules: (holds, what is said).

    other: what its wishes are incompatible with.
    way_out: what may be chosen instead of all of them.
    """
    found: list[tuple[bool, str]] = []
    for clash in table:
        thing = clash.holds(terms)
        said = f"{thing} is incompatible with {other}: {clash.because}; {clash.instead}{way_out}"
        found.append((thing is None, said))
    return tuple(found)


def buffers(terms: Terms) -> str | None:
    """Rounds of updates as they arrive."""
    return f"mode={terms.rounds.mode!r}" if terms.rounds.buffered else None


def reads_losses(terms: Terms) -> str | None:
    """A selection by the losses of single clients."""
    asked = terms.rounds.selection
    return f"selection={asked!r}" if selector_of(asked).needs_loss else None


def sections_of(terms: Terms) -> tuple[SectionSpec, ...]:
    """The sections of the method for a model of one weight: which there are does not depend on the model."""
    shapes = Shapes(tensors={"weight": (1,)}, trained={"weight": (1,)})
    client = terms.algorithm.client
    layout = Layout(tuple(Tensor(name, tuple(shape)) for name, shape in client.version(shapes).items()))
    return client.sections(shapes, layout)
