"""A vector under its masks: the only form in which it leaves a device."""

from collections.abc import Sequence

import numpy as np

from coterie import errors
from coterie.privacy.secagg import fields
from coterie.privacy.secagg.masks import Adder, MaskSeed
from coterie.privacy.secagg.ring import RingVector, VectorSpec, check_length, pieces


def masked(vector: RingVector, spec: VectorSpec, masks: Sequence[MaskSeed]) -> bytes:
    """The packed vector plus its masks: `ring.pack` of what `add_masks` makes of a copy, without that copy.

    Done in pieces that stay in the processor's cache: a device needs no memory but that of the result. Raises
    errors.ArgumentValueError (``secagg_vector``) for a number that is outside its segment's ring, and where the vector
    does not have the specification's shape.
    """
    check_length(vector, spec)
    out = np.empty(spec.packed_bytes, np.uint8)
    scratch = np.empty(fields.TILE, np.uint32)
    adder = Adder(masks)
    for segment, place, piece in pieces(spec, out):
        numbers = vector[place]
        for low in range(0, segment.length, fields.TILE):
            clear = numbers[low : low + fields.TILE]
            if int(clear.max()) >= segment.modulus:
                raise errors.ArgumentValueError(
                    f"Segment {segment.name[:64]!r} holds a number outside its ring of {segment.bits} bits.",
                    code="secagg_vector",
                )
            tile = scratch[: clear.size]
            np.copyto(tile, clear)
            adder.add(tile)
            fields.pack_tile(piece, segment.length, segment.bits, low, tile)
    return out.tobytes()
