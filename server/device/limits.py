"""How large an update may be."""

from collections.abc import Sequence

from coterie.protocol.codecs import CODECS
from coterie.protocol.sections import SectionSpec

HEADER_BYTES = 1 << 16


def upload_limit(sections: Sequence[SectionSpec]) -> int:
    """The most bytes that an update of these sections can have, whichever codecs it uses, with room for its header."""
    return HEADER_BYTES + sum(
        max(codec.max_bytes(spec.length, spec.segments) for codec in CODECS.values()) for spec in sections
    )
