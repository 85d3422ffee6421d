"""Messages of linear models that no program of these terms sends are refused, by party and step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.aggregation.vertical.exchange import Side, Tell
from coterie.aggregation.vertical.linear.feature_side import open_feature_side, step_feature_side
from coterie.aggregation.vertical.linear.label_side import open_label_side, step_label_side
from coterie.aggregation.vertical.linear.predicting import predict_feature_side, predict_label_side
from coterie.aggregation.vertical.together import run_together
from coterie.errors import Conflict, InputError
from coterie.protocol.arrays import ArraysByName
from tests.aggregation.linear.linear_kit import settings_of, tables_of, terms_of
from tests.aggregation.lying import with_lie
from tests.privacy.he.keys_kit import small_key

ROWS = 40
TABLES, TERMS = tables_of("logistic", ROWS), terms_of()
Lie = Callable[[ArraysByName], ArraysByName]


def change(name: str, how: Callable[[Any], Any]) -> Lie:
    """One array as ``how`` makes it."""
    return lambda arrays: {**arrays, name: how(arrays[name])}


def all_255(array: Any) -> Any:
    return np.full_like(array, 255)


LIES: dict[str, tuple[str, str, Lie, str, str]] = {
    "a key of another size": ("bank", "opening", change("modulus", lambda a: a[:-1]), "public_key", "none of"),
    "a row twice": (
        "bank",
        "opening",
        change("rows", lambda a: np.repeat(a[::2], 2)),
        "session_values",
        "rows",
    ),
    "a row beyond": ("bank", "opening", change("rows", lambda a: a + np.int32(1)), "session_values", "beyond 40"),
    "no rows": ("bank", "opening", change("rows", lambda a: a[:0]), "session_values", "rows"),
    "no columns": ("bank", "opening", change("columns", lambda a: a * 0), "session_values", "columns"),
    "no curvature": ("bank", "opening", change("curvature", lambda a: a * np.nan), "session_values", "curvature"),
    "no column": ("bureau", "columns", change("count", lambda a: a * 0), "session_values", "columns"),
    "fewer ciphertexts": (
        "bank",
        "residuals",
        change("ciphers", lambda a: a[:-1]),
        "session_values",
        "319 ciphertexts",
    ),
    "out of range": ("bank", "residuals", change("ciphers", all_255), "ciphertext_range", "ciphertext 0"),
    "zeros": ("bank", "residuals", change("ciphers", np.zeros_like), "ciphertext_range", "ciphertext 0"),
    "other arrays": ("bank", "residuals", lambda a: {"numbers": a["ciphers"]}, "session_values", "other arrays"),
    "sums out of range": ("bureau", "sums", change("own", all_255), "ciphertext_range", "ciphertext 0"),
    "no sums": ("bureau", "sums", change("masked", lambda a: a[:0]), "session_values", "0 ciphertexts"),
    "sums of nothing": (
        "bureau",
        "sums",
        lambda a: {**a, "own": a["own"][[0, 0]]},
        "session_values",
        "2 and 3 ciphertexts",
    ),
    "fewer opened": ("bank", "opened", change("sums", lambda a: a[:-1]), "session_values", "2 sums for 3"),
    "narrower": ("bank", "opened", change("sums", lambda a: a[:, :-1]), "session_values", "no sums"),
    "too large": ("bank", "opened", change("sums", lambda a: a ^ 127), "session_values", "larger than all rows"),
    "fewer scores": ("bureau", "scores", change("scores", lambda a: a[:-1]), "session_values", "39 scores for 40"),
    "no number": ("bureau", "scores", change("scores", lambda a: a * np.nan), "session_values", "no number"),
}


def play(liar: str, kind: str, lie: Callable[[Tell], Tell]) -> list[dict[str, Any]]:
    """What both have after the opening, one step and a prediction."""

    def told(role: str, side: Side[Any]) -> Side[Any]:
        return with_lie(side, kind, lie) if role == liar else side

    def both(bank: Side[Any], bureau: Side[Any]) -> dict[str, Any]:
        return run_together({"bank": told("bank", bank), "bureau": told("bureau", bureau)}, {})

    label, _ = settings_of(TERMS, TABLES, small_key(2048))
    opened = both(open_label_side(label), open_feature_side(TERMS, 3, ROWS))
    _, feature = settings_of(TERMS, TABLES, small_key(2048), opened["bureau"])
    if feature is None:
        pytest.fail("there is an opening")
    stepped = both(step_label_side(label, opened["bank"]), step_feature_side(feature, feature.data.start()))
    scores = np.arange(ROWS, dtype=np.float64)
    predicted = both(predict_label_side(TERMS, scores), predict_feature_side(TERMS, scores))
    return [opened, stepped, predicted]


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_by_party_and_step(name: str) -> None:
    liar, kind, lie, code, said = LIES[name]

    def changed(tell: Tell) -> Tell:
        return replace(tell, arrays=lie(dict(tell.arrays)))

    with pytest.raises(InputError, match=said) as caught:
        play(liar, kind, changed)
    assert caught.value.reason == code and liar in str(caught.value)
    if code != "public_key":
        assert kind in str(caught.value)
    # No number of anybody's rows, and no ciphertext, is in it.
    assert max(map(len, str(caught.value).split())) < 40


@pytest.mark.parametrize(("liar", "kind"), [("bank", "residuals"), ("bureau", "sums"), ("bank", "opened")])
def test_a_message_of_another_step_is_refused(liar: str, kind: str) -> None:
    def moved(tell: Tell) -> Tell:
        return replace(tell, place=replace(tell.place, at=(tell.place.at[0] + 1, tell.place.at[1])))

    with pytest.raises(Conflict, match=f"{liar} is at .*{kind}.*waits for") as caught:
        play(liar, kind, moved)
    assert caught.value.reason == "session_step"


def test_honest_parties_are_not_refused() -> None:
    opened, stepped, predicted = play("nobody", "", lambda tell: tell)
    assert len(opened["bureau"].used) == ROWS
    assert stepped["bank"].steps == stepped["bureau"].steps == 1
    assert np.array_equal(predicted["bank"], 2.0 * np.arange(ROWS))
