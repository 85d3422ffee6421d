"""What docs/trees.md says that each party learns, played as attacks."""

from os import urandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import Heard, Side, Tell
from coterie.aggregation.vertical.together import run_together
from coterie.aggregation.vertical.trees.feature_side import FeatureSetting, grow_feature_side, open_feature_side
from coterie.aggregation.vertical.trees.label_side import LabelSetting, grow_label_side, open_label_side
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.privacy.he.batches import CipherPool
from tests.aggregation.trees.trees_kit import Shared, shared_table
from tests.privacy.he.keys_kit import small_key

ROWS = 120


def telling_table() -> Shared:
    """A label that follows from the clinic's column but for a tenth of the rows, so that a set of rows in a node tells
    nearly all labels.
    """
    rng = np.random.default_rng(3)
    shared = shared_table({"clinic": 1, "registry": 2}, rows=ROWS, missing=0.0)
    column = rng.normal(size=ROWS)
    labels = ((column > 0) ^ (rng.random(ROWS) < 0.1)).astype(np.float64)
    return Shared({**shared.columns, "clinic": {"c0": column}}, labels)


def seen_by_feature_owner(terms: TreeTerms, shared: Shared) -> list[list[NDArray[np.int64]]]:
    """Per tree, the sets of rows that it saw in nodes, worked out of the messages that came to it."""
    binned = shared.binned(terms.bins)
    key = small_key(2048)
    owner = LabelSetting(
        terms,
        shared.labels,
        np.zeros(len(shared.labels), np.bool_),
        {"clinic": binned["clinic"]},
        urandom(32),
        CipherPool(key),
    )
    feature = FeatureSetting(terms, "registry", binned["registry"], urandom(32), CipherPool(key.public))
    sets: list[list[NDArray[np.int64]]] = []

    def listening(side: Side[Any]) -> Side[Any]:
        """The label owner's bits of a split of all rows are in the clear: which go left, and which not."""
        try:
            step = next(side)
            while True:
                heard: Heard = yield step
                if heard.place.name == "splits" and heard.place.at[1] == 0 and len(heard.arrays["sides"]):
                    left = np.unpackbits(heard.arrays["sides"], count=len(shared.labels)).astype(bool)
                    sets[-1] += [np.flatnonzero(left), np.flatnonzero(~left)]
                step = side.send(heard)
        except StopIteration as end:
            return end.value

    states = run_together({"clinic": open_label_side(owner), "registry": open_feature_side(feature)}, {})
    for _ in range(terms.trees):
        sets.append([])
        sides = {
            "clinic": grow_label_side(owner, states["clinic"]),
            "registry": listening(grow_feature_side(feature, states["registry"])),
        }
        states = run_together(sides, {})
    return sets


def guessed(sets: list[NDArray[np.int64]], labels: NDArray[np.float64]) -> float:
    """The share of labels that are guessed right by who gives every set the label that most of it has (ID2Graph of
    Takahashi et al., arXiv:2111.12364, with clusters that are the sets themselves).
    """
    if not sets:
        return float(max(labels.mean(), 1 - labels.mean()))
    return sum(max(labels[rows].sum(), len(rows) - labels[rows].sum()) for rows in sets if len(rows)) / len(labels)


def test_instance_sets_tell_labels_and_trees_grown_alone_tell_fewer() -> None:
    shared = telling_table()
    asked: dict[str, Any] = {
        "label_owner": "clinic",
        "feature_owners": ("registry",),
        "depth": 2,
        "bins": 8,
        "key_bits": 2048,
        "learning_rate": 1.0,
    }
    (joint,) = seen_by_feature_owner(TreeTerms(trees=1, **asked), shared)
    assert guessed(joint, shared.labels) > 0.9 > 0.6 > guessed([], shared.labels)
    *alone, next_one = seen_by_feature_owner(TreeTerms(trees=7, trees_alone=6, **asked), shared)
    assert alone == [[]] * 6
    # The sets of later trees follow what those before left over. That tells fewer labels; not none.
    assert guessed(next_one, shared.labels) < guessed(joint, shared.labels) - 0.2


def test_one_tree_grown_alone_hides_little_where_it_leaves_much_over() -> None:
    """Why docs/trees.md does not call one tree enough."""
    shared = telling_table()
    terms = TreeTerms(
        label_owner="clinic",
        feature_owners=("registry",),
        trees=2,
        trees_alone=1,
        depth=2,
        bins=8,
        key_bits=2048,
        learning_rate=0.3,
    )
    hidden, second = seen_by_feature_owner(terms, shared)
    assert hidden == [] and guessed(second, shared.labels) > 0.9


def test_a_label_owner_that_encrypts_powers_of_two_reads_bins_out_of_sums() -> None:
    """Reverse-sum (Weng et al., arXiv:2011.09290): why the sums hold only against who follows the protocol."""
    shared = shared_table({"clinic": 1, "registry": 1}, rows=40, missing=0.0)
    (binned,) = (shared.binned(4)["registry"],)
    pool = CipherPool(small_key(2048))
    lies = pool.encrypt([1 << row for row in range(40)], urandom(32))
    (sums,) = pool.sum_groups(lies, binned.codes.astype(np.int64), binned.counts)
    read = np.empty(40, np.int64)
    for place, total in enumerate(pool.decrypt(sums)):
        read[[row for row in range(40) if total >> row & 1]] = place
    assert np.array_equal(read, binned.codes[:, 0])


def test_nothing_that_leaves_a_feature_owner_names_its_numbers() -> None:
    """Its own splits stay: other thresholds between the same rows change no message but by their blinding."""
    shared = shared_table({"clinic": 1, "registry": 2}, rows=40, missing=0.0)
    stretched = Shared(
        {**shared.columns, "registry": {name: 1000 + 7 * v for name, v in shared.columns["registry"].items()}},
        shared.labels,
    )
    terms = TreeTerms(label_owner="clinic", feature_owners=("registry",), trees=1, depth=2, bins=4, key_bits=2048)

    def told(table: Shared) -> list[tuple[str, dict[str, tuple[int, ...]], bytes]]:
        binned, key = table.binned(terms.bins), small_key(2048)
        held = np.zeros(len(table.labels), np.bool_)
        owner = LabelSetting(terms, table.labels, held, {"clinic": binned["clinic"]}, urandom(32), CipherPool(key))
        feature = FeatureSetting(terms, "registry", binned["registry"], urandom(32), CipherPool(key.public))
        found: list[tuple[str, dict[str, tuple[int, ...]], bytes]] = []

        def noting(side: Side[Any]) -> Side[Any]:
            try:
                step = next(side)
                while True:
                    if isinstance(step, Tell):
                        shapes = {name: array.shape for name, array in step.arrays.items()}
                        open_bytes = b"".join(a.tobytes() for n, a in step.arrays.items() if n != "ciphers")
                        found.append((str(step.place), shapes, open_bytes))
                    heard = yield step
                    step = side.send(heard)
            except StopIteration as end:
                return end.value

        sides = {"clinic": open_label_side(owner), "registry": noting(open_feature_side(feature))}
        states = run_together(sides, {})
        grown = {
            "clinic": grow_label_side(owner, states["clinic"]),
            "registry": noting(grow_feature_side(feature, states["registry"])),
        }
        run_together(grown, {})
        return found

    assert told(shared) == told(stretched)
