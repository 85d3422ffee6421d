"""Lengths of sequences that an experiment asks steps for, beside the full length that its schema says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias, cast

from coterie.protocol.schema import DataSchema, Feature, Label

MOST_LENGTHS = 8
Lengths: TypeAlias = Mapping[str, tuple[int, ...]]
"""Name of a feature or of the label → its shorter lengths, ascending; the first of each name make one step."""


def fault(schema: DataSchema, lengths: Lengths) -> str:
    """What is wrong with these lengths, in words; "" when nothing is."""
    if not lengths:
        return ""
    features = {feature.name: feature for feature in schema.features}
    for name, asked in lengths.items():
        if not isinstance(cast(object, asked), tuple):
            return f"lengths of {str(name)[:64]!r} must be a tuple of whole numbers, not {str(asked)[:64]!r}"
        if name in features:
            wrong = _of_feature(features[name])
        elif name == schema.label.name:
            wrong = _of_label(schema.label)
        else:
            return f"lengths names {str(name)[:64]!r}, which the schema does not have"
        full = (features[name] if name in features else schema.label).shape[:1]
        if not wrong and not _ascend(asked, *full):
            wrong = f"they must be whole numbers that ascend in 1..{full[0] - 1}; the schema has the longest"
        if wrong:
            return f"lengths of {name!r}: {wrong}"
    counts = {len(asked) for asked in lengths.values()}
    if len(counts) > 1 or max(counts) > MOST_LENGTHS:
        return f"lengths must give each name as many lengths, at most {MOST_LENGTHS}"
    if not lengths.keys() & features.keys():
        return "lengths must name a feature"
    return ""


def padding(schema: DataSchema, name: str) -> float:
    """The number that fills positions of a feature (0) or of the label (its ``low``)."""
    return float(schema.label.low or 0) if name == schema.label.name else 0.0


def shortened(schema: DataSchema, lengths: Mapping[str, int]) -> DataSchema:
    """The schema of batches that are cut to these lengths. Their rows are read by nobody: they are cut from others."""
    features = tuple(
        replace(each, shape=(lengths[each.name], *each.shape[1:]), columns=each.columns if each.is_text else ())
        if each.name in lengths
        else each
        for each in schema.features
    )
    label = schema.label
    if label.name in lengths:
        label = replace(label, shape=(lengths[label.name], *label.shape[1:]), columns=())
    return DataSchema(features, label)


def _of_feature(feature: Feature) -> str:
    if not feature.shape:
        return "it has no positions; its shape must begin with the longest length"
    if isinstance(feature.offset, tuple) or isinstance(feature.scale, tuple):
        return "its positions must share one offset and one scale"
    if feature.vocabulary is not None:
        return "a vocabulary gives one number to a cell, not a sequence"
    if (feature.low or 0) > 0 or (feature.high or 0) < 0:
        return "0 fills a sequence, and must lie in low..high"
    return ""


def _of_label(label: Label) -> str:
    if not label.shape:
        return "the label has no positions; its shape must begin with the longest length"
    if label.low is None:
        return "the label needs low, the number that fills it, such as low=-1 with a loss of ignore=-1"
    return ""


def _ascend(asked: tuple[int, ...], full: int) -> bool:
    whole = all(type(each) is int for each in asked)
    return bool(asked) and whole and 0 < asked[0] and list(asked) == sorted(set(asked)) and asked[-1] < full
