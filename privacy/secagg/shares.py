"""A share as bytes and as text: nine field elements, four little-endian bytes each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.secagg.shamir import LIMBS, PRIME
from coterie.protocol.secagg import SHARE_BYTES, from_base64

BOXED = 2 * SHARE_BYTES
"""What a box holds: a share of the seed of the sender's own mask, then one of its mask key."""
_ELEMENT = np.dtype("<u4")


def encode_share(share: npt.NDArray[np.uint32]) -> bytes:
    """The bytes of one share [9]."""
    return share.astype(_ELEMENT).tobytes()


def decode_shares(texts: Sequence[str]) -> npt.NDArray[np.uint32]:
    """Shares [m, 9] of their base64, 48 characters each.

    Raises errors.SecureAggregationRefused (``secagg_shares``) for numbers outside the field.
    """
    data = from_base64("".join(texts)) or b""
    if len(data) == SHARE_BYTES * len(texts):
        shares = np.frombuffer(data, _ELEMENT).astype(np.uint32).reshape(-1, LIMBS)
    else:
        shares = None
    if shares is None or bool((shares >= PRIME).any()):
        raise errors.SecureAggregationRefused(
            f"A share is {LIMBS} numbers below {PRIME}; this is not one.",
            hint="Whoever dealt or revealed it violates the protocol.",
            code="secagg_shares",
        )
    return shares
