"""A finer reading of a population's rows: what may be asked of its devices beside the schema that they joined under.

A population declares its columns before anybody knows their statistics. Once these are agreed (see
`coterie.aggregation.preparation`), a plan may read the same columns with them: numbers with another normalisation, text
by a vocabulary instead of its bytes, text as the label's classes. Nothing else: no column that was not declared, no
other range, no other meaning. So devices enrol once, and one ledger holds what all questions about their rows cost.
"""

from dataclasses import replace

from coterie.protocol.schema import DataSchema, Feature, Label


def departure(finer: DataSchema, declared: DataSchema) -> str | None:
    """Why ``finer`` is no finer reading of ``declared``, in words that follow "it"; None where it is one."""
    if finer.digest == declared.digest:
        return None
    known = {_sources(feature): feature for feature in declared.features}
    for feature in finer.features:
        before = known.get(_sources(feature))
        if before is None:
            return f"reads {', '.join(_sources(feature))[:200]} as {feature.name!r}, which was not declared so"
        if not _is_finer(feature, before):
            return f"reads {feature.name!r} otherwise than declared"
    return _departure_of(finer.label, declared, known)


def _is_finer(feature: Feature, declared: Feature) -> bool:
    if declared.encoding is not None:
        return feature == declared or (feature.vocabulary is not None and feature.name == declared.name)
    return replace(feature, offset=declared.offset, scale=declared.scale) == declared


def _departure_of(label: Label, declared: DataSchema, known: dict[tuple[str, ...], Feature]) -> str | None:
    if label == declared.label or label.constant is not None:
        return None
    before = known.get((label.column or label.name,))
    if before is not None and before.encoding is not None and label.classes is not None:
        return None
    return f"reads the label {label.name!r} otherwise than declared"


def _sources(feature: Feature) -> tuple[str, ...]:
    return feature.columns or (feature.name,)
