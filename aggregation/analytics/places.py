"""Where in a vector of secure aggregation the sums of a query lie.

What one client adds may be a single number: all its rows in one bin. Secure sums turn a vector block by block and make
room in every place for what a vector has there on average, so such a number fits the better the larger its block is,
and a number in a small block at the vector's end may not fit at all: it is cut, or comes out at the other end of the
ring. The grid of the coordinator's noise turns a vector as it is, devices that make the noise deal it out first
(`coterie.privacy.dp.spread`). A version has more than twice as many places as there are sums, so the sums take those
that lie in the largest blocks both ways, and neighbours lie far apart.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.spread import dealing, stride
from coterie.protocol.codecs import rotation


@lru_cache(maxsize=32)
def places(sums: int, length: int) -> npt.NDArray[np.int64]:
    """The place of each sum in a vector of this length, ``[sums]``, all different."""
    chosen = np.sort(np.argsort(-_smaller_block_sizes(length), kind="stable")[:sums])
    found = chosen[np.arange(sums, dtype=np.int64) * stride(sums) % sums]
    found.setflags(write=False)
    return found


def smallest_block(sums: int, length: int) -> int:
    """Of those that `places` lie in."""
    return int(_smaller_block_sizes(length)[places(sums, length)].min())


def _smaller_block_sizes(length: int) -> npt.NDArray[np.int64]:
    """Of the two blocks that each place may be turned in, how many numbers the smaller has, ``[length]``."""
    sizes = np.concatenate([np.full(span.count * span.size, span.size) for span in rotation.spans(length)])[:length]
    dealt = np.empty_like(sizes)
    dealt[dealing(length)] = sizes
    return np.minimum(sizes, dealt)
