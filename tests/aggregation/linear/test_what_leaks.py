"""What docs/linear.md says that each party learns, played as attacks."""

from dataclasses import replace
from os import urandom
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import Side, Tell
from coterie.aggregation.vertical.linear import sums
from coterie.aggregation.vertical.linear.feature_side import LinearFeatureSetting, open_feature_side, step_feature_side
from coterie.aggregation.vertical.linear.label_side import LinearLabelSetting, open_label_side, step_label_side
from coterie.aggregation.vertical.linear.links import LINKS
from coterie.aggregation.vertical.linear.terms import ROWS_PER_COLUMN
from coterie.aggregation.vertical.together import run_together
from coterie.aggregation.whole_metrics import auc
from tests.aggregation.linear.linear_kit import settings_of, tables_of, terms_of
from tests.aggregation.lying import with_lie
from tests.privacy.he.keys_kit import small_key

ROWS = 40
TERMS = terms_of()


def opened(tables: Any) -> tuple[LinearLabelSetting, LinearFeatureSetting, Any]:
    """Both sides before the first step."""
    label, _ = settings_of(TERMS, tables, small_key(2048))
    found = run_together({"bank": open_label_side(label), "bureau": open_feature_side(TERMS, 3, ROWS)}, {})
    _, feature = settings_of(TERMS, tables, small_key(2048), found["bureau"])
    if feature is None:
        pytest.fail("there is an opening")
    return label, feature, found["bank"]


def listening(side: Side[Any], found: dict[str, Any]) -> Side[Any]:
    """A program, and the arrays of the last message of each kind that it heard."""
    try:
        step = next(side)
        while True:
            heard = yield step
            found[heard.place.name] = heard.arrays
            step = side.send(heard)
    except StopIteration as end:
        return end.value


def random_labels(rows: int, columns: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Columns of the feature owner, and labels that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)), (rng.random(rows) < 0.5).astype(np.float64)


def label_leak(rows: int, columns: int) -> float:
    """The area under the curve of who guesses labels from the feature owner's sums of the first step, where every
    residual is a constant less the label: the least residuals that have these sums.
    """
    areas: list[float] = []
    for seed in range(10):
        own, labels = random_labels(rows, columns, seed)
        told = own.T @ (labels.mean() - labels)
        guess: NDArray[np.float64] = -np.linalg.pinv(own.T) @ told
        areas.append(auc(guess, labels) or 0.5)
    return float(np.mean(areas))


def test_sums_over_few_rows_tell_labels_and_over_allowed_batches_little() -> None:
    """Why there are `ROWS_PER_COLUMN`."""
    assert label_leak(20, 20) > 0.99
    assert label_leak(80, 20) > 0.75
    assert label_leak(20 * ROWS_PER_COLUMN, 20) < 0.72
    assert label_leak(2000, 20) < 0.58


def score_leak(rows: int, columns: int) -> float:
    """The correlation of the feature owner's parts of scores with what a label owner of so many columns guesses of its
    own sums in the second step: the least residuals that have them.
    """
    found: list[float] = []
    for seed in range(5):
        own, _ = random_labels(rows, columns, seed)
        theirs, labels = random_labels(rows, 3, seed + 100)
        score = theirs @ [0.3, -0.2, 0.1]
        with_intercept = np.hstack([np.ones((rows, 1)), own])
        told = with_intercept.T @ (1 / (1 + np.exp(-score)) - labels)
        share = np.clip(labels + np.linalg.pinv(with_intercept.T) @ told, 1e-3, 1 - 1e-3)
        found.append(abs(float(np.corrcoef(np.log(share / (1 - share)), score)[0, 1])))
    return float(np.mean(found))


def test_sums_of_many_own_columns_tell_the_label_owner_scores_and_of_few_little() -> None:
    assert score_leak(40, 45) > 0.99
    assert score_leak(20 * ROWS_PER_COLUMN, 20) < 0.2


def test_a_column_in_which_one_row_differs_tells_its_owner_that_rows_residual() -> None:
    """However many rows there are, of parties that follow the protocol: why such a column is refused."""
    _, labels = random_labels(500, 1, 0)
    rare = np.zeros(500)
    rare[7] = 1.0
    standard = (rare - rare.mean()) / rare.std()
    residual = labels.mean() - labels
    # Of the first step, where residuals sum to 0.
    assert standard @ residual * rare.std() == pytest.approx(residual[7])


def test_an_honest_label_owner_sees_sums_of_its_own_columns_alone() -> None:
    """What it decrypts beside them is masked: the same sums under other masks have nothing in common."""
    tables = tables_of("logistic", ROWS)
    label, feature, now = opened(tables)
    seen: list[tuple[list[int], list[int]]] = []
    for seed in (urandom(32), urandom(32)):
        heard: dict[str, Any] = {}
        sides: dict[str, Side[Any]] = {
            "bank": listening(step_label_side(label, now), heard),
            "bureau": step_feature_side(replace(feature, seed=seed), feature.data.start()),
        }
        run_together(sides, {})
        own, masked = (label.pool.decrypt(heard["sums"][name]) for name in ("own", "masked"))
        seen.append((own, masked))
    (own, masked), (again, others) = seen
    assert own == again
    layout = sums.layout_for(label.pool.public, LINKS["logistic"], ROWS, 3)
    bits = [
        [abs(number).bit_length() for plain in plains for number in layout.packing.unpack(plain, 3)]
        for plains in (masked, others)
    ]
    # Every slot of every sum, also those that hold products of both roles' columns, is as long as a mask.
    assert min(map(min, bits)) > layout.mask.bit_length() - 20
    assert not {*masked} & {*others}


def test_a_feature_owner_sees_ciphertexts_and_its_own_sums_alone() -> None:
    tables = tables_of("logistic", ROWS)
    label, feature, now = opened(tables)
    heard: dict[str, Any] = {}
    sides: dict[str, Side[Any]] = {
        "bank": step_label_side(label, now),
        "bureau": listening(step_feature_side(feature, feature.data.start()), heard),
    }
    run_together(sides, {})
    assert {*heard} - {"nothing"} == {"residuals", "opened"}
    # No two of the hundreds of ciphertexts are alike, though most of what they hold is.
    ciphers = heard["residuals"]["ciphers"]
    assert len({row.tobytes() for row in ciphers}) == len(ciphers) == ROWS * 8


def test_a_feature_owner_that_lies_reads_single_residuals() -> None:
    """Why it holds only against who follows the protocol: the label owner opens what it is sent."""
    tables = tables_of("logistic", ROWS)
    label, feature, now = opened(tables)
    victim = 5
    heard: dict[str, Any] = {}

    def stolen(tell: Tell) -> Tell:
        pool, rows = feature.pool, np.zeros((ROWS, 1), np.int64)
        rows[victim] = 1
        left = LINKS["logistic"].left(np.zeros(ROWS))
        weights = np.hstack([np.ones((ROWS, 1), np.int64), left])
        one = pool.combine_rows(heard["residuals"]["ciphers"], weights, rows)
        return replace(tell, arrays={**tell.arrays, "masked": np.repeat(one, 3, axis=0)})

    sides: dict[str, Side[Any]] = {
        "bank": step_label_side(label, now),
        "bureau": with_lie(listening(step_feature_side(feature, feature.data.start()), heard), "sums", stolen),
    }
    with pytest.raises(Exception, match="larger than all rows"):
        # Its own program, which still takes the masks off, is at a loss; the liar has read the message.
        run_together(sides, {})
    layout = sums.layout_for(label.pool.public, LINKS["logistic"], ROWS, 3)
    (read, *_) = sums.from_bytes(heard["opened"]["sums"], layout)
    share = 1 / (1 + np.exp(-now.values[0]))
    expected = share - label.data.labels[victim]
    assert read / 2**sums.OWN_BITS == pytest.approx(expected, abs=0.011)
