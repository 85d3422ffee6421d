"""The law: parties that show each other nothing grow the trees of the joined table, bit for bit."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from coterie.aggregation.vertical.trees.forest import forest_of
from coterie.aggregation.vertical.trees.in_process import grow_centrally, grow_together
from coterie.aggregation.vertical.trees.terms import TreeTerms
from tests.aggregation.trees.trees_kit import brute_force, rows_of_trees, shared_table
from tests.privacy.he.keys_kit import small_key

SEED = bytes(range(32))
HELD_OUT = 0.25
# name → columns of each party, changes of the terms, and whether rows are held out.
CASES: dict[str, tuple[Mapping[str, int], dict[str, Any], bool]] = {
    "two parties": ({"clinic": 3, "registry": 3}, {}, False),
    "three parties": ({"clinic": 2, "registry": 2, "bank": 2}, {}, False),
    "a label owner without columns": ({"clinic": 0, "registry": 4}, {}, False),
    "a feature owner of one column": ({"clinic": 3, "registry": 1}, {"depth": 4}, False),
    "squared": ({"clinic": 2, "registry": 3}, {"loss": "squared"}, False),
    "goss": ({"clinic": 2, "registry": 3}, {"top_share": 0.2, "other_share": 0.3}, False),
    "first tree alone": ({"clinic": 2, "registry": 3}, {"trees_alone": 1}, False),
    "early end": ({"clinic": 2, "registry": 3}, {"patience": 1, "trees": 6, "learning_rate": 1.0}, True),
    "heavy": ({"clinic": 2, "registry": 3}, {"min_child_weight": 4.0, "min_gain": 1.0, "l2": 0.0}, False),
}


def terms_of(widths: Mapping[str, int], **changes: Any) -> TreeTerms:
    label_owner, *feature_owners = widths
    asked: dict[str, Any] = {"trees": 2, "bins": 6, "key_bits": 2048, **changes}
    return TreeTerms(label_owner=label_owner, feature_owners=tuple(feature_owners), **asked)


@pytest.mark.parametrize("case", CASES)
def test_trees_under_encryption_are_those_of_the_joined_table(case: str) -> None:
    widths, changes, holds_out = CASES[case]
    terms = terms_of(widths, **changes)
    shared = shared_table(widths, rows=90, regression=terms.loss == "squared")
    binned, labels = shared.binned(terms.bins), shared.labels
    held = np.random.default_rng(1).random(len(labels)) < (HELD_OUT if holds_out else 0)
    apart = grow_together(terms, binned, labels, small_key(2048), held_out=held, seed=SEED)
    joined = grow_centrally(terms, binned, labels, held_out=held, seed=SEED)
    assert apart.owner.forest == joined.owner.forest
    assert apart.splits == joined.splits and apart.owner.splits == joined.owner.splits
    assert np.array_equal(apart.owner.margins, joined.owner.margins)
    assert np.array_equal(apart.owner.losses, joined.owner.losses, equal_nan=True)
    assert apart.owner.over == joined.owner.over == (case == "early end")
    parties = {node.party for tree in apart.owner.forest.trees for node in tree}
    assert parties >= {1}, "no tree asked the feature owner"
    first = {node.party for node in apart.owner.forest.trees[0]} - {-1}
    assert first == {0} if terms.trees_alone else first
    # What a party keeps gives the margins that training ended with.
    splits = {**apart.splits, **apart.owner.splits}
    bits = {
        number: splits[party].bits(shared.columns[party], len(labels)) for number, party in enumerate(terms.parties)
    }
    forest = forest_of(apart.owner.forest.to_arrays())
    assert forest == apart.owner.forest
    assert np.allclose(forest.margins(bits, len(labels)), apart.owner.margins, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trees_are_those_of_who_tries_every_split_with_fractions(seed: int) -> None:
    widths = {"clinic": 2, "registry": 2}
    terms = terms_of(widths, depth=2)
    shared = shared_table(widths, rows=60, seed=seed)
    grown = grow_centrally(terms, shared.binned(terms.bins), shared.labels)
    found = rows_of_trees(terms, grown.owner.forest, {**grown.splits, **grown.owner.splits})
    expected = brute_force(terms, shared, terms.bins, terms.trees)

    def same(one: list[Any], other: list[Any]) -> None:
        assert len(one) == len(other)
        if len(one) == 1:
            assert one[0] == pytest.approx(other[0], rel=1e-12, abs=1e-15)
        else:
            assert one[0] == other[0]
            same(one[1], other[1])
            same(one[2], other[2])

    for one, other in zip(found, expected, strict=True):
        same(one, other)


def test_more_processes_change_nothing() -> None:
    widths = {"clinic": 1, "registry": 2}
    terms = terms_of(widths, trees=1, depth=2)
    shared = shared_table(widths, rows=40)
    binned = shared.binned(terms.bins)
    one, two = (
        grow_together(terms, binned, shared.labels, small_key(2048), seed=SEED, processes=count) for count in (1, 2)
    )
    assert one.owner.forest == two.owner.forest and one.splits == two.splits
    # A header's length follows from sizes alone, and these are the same.
    assert one.sent == two.sent
