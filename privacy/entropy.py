"""Where secrets come from: a function from a number of bytes to that many fresh bytes; `os.urandom` but in tests."""

from collections.abc import Callable
from typing import TypeAlias

from coterie import errors

Entropy: TypeAlias = Callable[[int], bytes]


def draw(entropy: Entropy, count: int) -> bytes:
    """`count` fresh bytes. Raises errors.InternalError for a source that returns another number of them."""
    drawn = entropy(count)
    if len(drawn) != count:
        raise errors.InternalError(f"A source of entropy returned {len(drawn)} bytes, not the {count} asked for.")
    return drawn
