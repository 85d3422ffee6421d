"""Programs of parties whose messages are others than they should be."""

from collections.abc import Callable
from typing import Any

from coterie.aggregation.vertical.exchange import Side, Tell


def with_lie(side: Side[Any], kind: str, lie: Callable[[Tell], Tell]) -> Side[Any]:
    """A program whose messages of one kind are others."""
    try:
        step = next(side)
        while True:
            if isinstance(step, Tell) and step.place.name == kind:
                step = lie(step)
            heard = yield step
            step = side.send(heard)
    except StopIteration as end:
        return end.value
