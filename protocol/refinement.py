"""A finer reading of a population's rows: what may be asked of its devices beside the schema that they joined under.

A population declares its columns before anybody knows their statistics. Once these are agreed (see
`coterie.aggregation.preparation`), a plan may read the same columns with them: numbers with another normalisation, text
by a vocabulary instead of its bytes, text as the label's classes. Nothing else: no column that was not declared, no
other range, no other name, no text longer than the bytes that were declared for it, and no row refused for its label.
Rows may be dropped for it: what a device without any other row then does is told in `coterie.client_sdk.device.work`.
So devices enrol once, and one ledger holds what all questions about their rows cost.
"""

from collections.abc import Sequence
from dataclasses import replace

from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.schema_rules import RawLabel


def departure(finer: DataSchema, declared: DataSchema) -> str | None:
    """Why ``finer`` is no finer reading of ``declared``, in words that follow "it"; None where it is one."""
    if finer.digest == declared.digest:
        return None
    known = {_sources(feature): feature for feature in declared.features}
    for feature in finer.features:
        before = known.get(_sources(feature))
        if before is None:
            return f"reads {', '.join(_sources(feature))[:200]} as {feature.name!r}, which is not how it was declared"
        if not _is_finer(feature, before):
            return f"reads {feature.name!r} otherwise than declared"
    return _departure_of(finer.label, declared, known)


def _is_finer(feature: Feature, declared: Feature) -> bool:
    if declared.encoding is not None and feature != declared:
        # Names too: arrays are found by them, and another name would be another array.
        return feature.name == declared.name and _texts_fit(feature.vocabulary, declared)
    return replace(feature, offset=declared.offset, scale=declared.scale) == declared


def _departure_of(label: Label, declared: DataSchema, known: dict[tuple[str, ...], Feature]) -> str | None:
    if label == declared.label or label.constant is not None:
        return None
    before = known.get(label.sources)
    if (
        before is not None
        and before.encoding is not None
        and label.name == before.name
        and _texts_fit(label.classes, before)
    ):
        # A device that refused a row would tell, by being silent, that it has such a row.
        return None if label.others == "dropped" else f"refuses rows by the label {label.name!r} and does not drop them"
    return f"reads the label {label.name!r} differently from its declaration"


def _texts_fit(texts: Sequence[RawLabel] | None, declared: Feature) -> bool:
    """Whether there are texts alone, and the declared bytes have room for each: they tell no longer ones from one
    another. Numbers would refuse a column for one cell that is none.
    """
    return texts is not None and all(
        isinstance(text, str) and len(text.encode("utf-8", "replace")) <= declared.size for text in texts
    )


def _sources(feature: Feature) -> tuple[str, ...]:
    return feature.columns or (feature.name,)
