"""How large an update may be."""

from collections.abc import Sequence

from coterie.privacy.secagg.encoding import vector_spec
from coterie.protocol.codecs import parse
from coterie.protocol.codecs.table import MANDATORY
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.update import SUMS

HEADER_BYTES = 1 << 16
_codecs_of_sums = (MANDATORY, SUMS)


def upload_limit(sections: Sequence[SectionSpec], codecs: Sequence[str], *, sums: bool) -> int:
    """The most bytes that an update of these sections can have, whichever of `codecs` it uses, with room for its
    header.

    sums: whether it is an edge aggregator's accumulator.
    """
    return HEADER_BYTES + sum(
        max(
            parse(name).max_bytes(spec.shape)
            for name in (_codecs_of_sums if sums or spec.is_extra else (MANDATORY, *codecs))
        )
        for spec in sections
    )


def masked_limit(sections: Sequence[SecureSection]) -> int:
    """The most bytes that the file of a masked vector of these sections can have."""
    return HEADER_BYTES + vector_spec(sections).packed_bytes
