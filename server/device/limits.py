"""How large an update may be."""

from collections.abc import Sequence

from coterie.privacy.secagg.encoding import vector_spec
from coterie.protocol.codecs.table import MANDATORY
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.update import SUMS, most_bytes

_HEADER_BYTES = 1 << 16


def upload_limit(sections: Sequence[SectionSpec], codecs: Sequence[str], *, sums: bool) -> int:
    """The most bytes that an update of these sections can have, whichever of `codecs` it uses, with room for its
    header.

    sums: whether it is an edge aggregator's accumulator.
    """
    return most_bytes(sections, (MANDATORY, SUMS) if sums else (MANDATORY, *codecs))


def masked_limit(sections: Sequence[SecureSection]) -> int:
    """The most bytes that the file of a masked vector of these sections can have."""
    return _HEADER_BYTES + vector_spec(sections).packed_bytes
