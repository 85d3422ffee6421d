"""A partner that sends what no program of these terms sends is refused by name, step and column."""

from collections.abc import Callable
from dataclasses import replace
from os import urandom
from typing import Any

import numpy as np
import pytest

from coterie.aggregation.vertical.exchange import NOTHING, Hear, Side, Tell, read_message_of
from coterie.aggregation.vertical.together import run_together
from coterie.aggregation.vertical.trees.feature_side import FeatureSetting, grow_feature_side, open_feature_side
from coterie.aggregation.vertical.trees.label_side import LabelSetting, grow_label_side, open_label_side
from coterie.aggregation.vertical.trees.messages import place_of
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.errors import Conflict, CoterieError, InputError, InternalError
from coterie.privacy.he.batches import CipherPool
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.tensors import encode_tensors
from tests.aggregation.lying import with_lie
from tests.aggregation.trees.trees_kit import shared_table
from tests.privacy.he.keys_kit import small_key

TERMS = TreeTerms(label_owner="clinic", feature_owners=("registry",), trees=1, depth=2, bins=4, key_bits=2048)
SHARED = shared_table({"clinic": 1, "registry": 2}, rows=40)
Lie = Callable[[dict[str, Any]], dict[str, Any]]


def change(name: str, value: Callable[[Any], Any]) -> Lie:
    """Another array under a name."""
    return lambda arrays: {**arrays, name: np.asarray(value(arrays[name]))}


def encrypted(number: int) -> Callable[[Any], Any]:
    """Ciphertexts of one number in place of all."""
    pool = CipherPool(small_key(2048))
    return lambda ciphers: pool.encrypt([number] * len(ciphers), urandom(32))


def cell(row: int, column: int, value: int) -> Callable[[Any], Any]:
    """One number changed, of a choice for this party where there is one."""

    def changed(choice: Any) -> Any:
        made = choice.copy()
        made[row] = (2, 0, 0, 0)
        made[row, column] = value
        return made

    return changed


# Who lies, in which message, what, and what the other says.
LIES: dict[str, tuple[str, str, Lie, str, str]] = {
    "no ciphertext": ("registry", "histograms", change("ciphers", np.zeros_like), "ciphertext_range", "ciphertext 0"),
    "a narrow one": (
        "registry",
        "histograms",
        change("ciphers", lambda c: c[:, 1:]),
        "ciphertext_range",
        "2048",
    ),
    "a sum less": ("registry", "histograms", change("ciphers", lambda c: c[:-1]), "session_values", "hold the sums"),
    "no sums": ("registry", "histograms", change("ciphers", encrypted(2**2040)), "session_values", "holds no sums"),
    "large sums": (
        "registry",
        "histograms",
        change("ciphers", encrypted(2**38 - 1)),
        "session_values",
        "larger",
    ),
    "no bins": ("registry", "columns", change("bins", np.zeros_like), "session_values", "column with no bin"),
    "many bins": ("registry", "columns", change("bins", lambda b: b + 9), "session_values", "more than 5"),
    "uneven columns": ("registry", "columns", change("missing", lambda m: m[:-1]), "session_values", "fit together"),
    "few sides": ("registry", "sides", change("sides", lambda s: s[:-1]), "session_values", "bytes of sides"),
    "a bad key": ("clinic", "opening", change("modulus", lambda m: m[1:]), "public_key", "public key"),
    "rows beyond": ("clinic", "gradients", change("rows", lambda r: r + 1), "session_values", "do not rise"),
    "rows twice": ("clinic", "gradients", change("rows", np.zeros_like), "session_values", "do not rise"),
    "rows too few": ("clinic", "gradients", change("rows", lambda r: r[:-1]), "session_values", "ciphertexts for"),
    "a bad row": ("clinic", "gradients", change("ciphers", np.zeros_like), "ciphertext_range", "clinic's gradients"),
    "another owner": ("clinic", "splits", change("choice", cell(0, 0, 7)), "session_values", "no kind"),
    "no such column": ("clinic", "splits", change("choice", cell(0, 1, 2)), "session_values", "column 2, of 2"),
    "no such place": ("clinic", "splits", change("choice", cell(0, 2, 44)), "session_values", "place in column 0"),
    "a node more": ("clinic", "splits", change("choice", lambda c: np.repeat(c, 2, 0)), "session_values", "1 nodes"),
    "other arrays": ("clinic", "splits", lambda a: {"choice": a["choice"]}, "session_values", "other arrays"),
    "another dtype": (
        "registry",
        "sides",
        change("sides", lambda s: s.astype("int32")),
        "session_values",
        "other arrays",
    ),
}


def play(liar: str, kind: str, lie: Callable[[Tell], Tell]) -> None:
    """The opening and one tree."""
    binned = SHARED.binned(TERMS.bins)
    none = np.zeros(len(SHARED.labels), np.bool_)
    local = {"clinic": binned["clinic"]}
    owner = LabelSetting(TERMS, SHARED.labels, none, local, urandom(32), CipherPool(small_key(2048)))
    feature = FeatureSetting(TERMS, "registry", binned["registry"], urandom(32), CipherPool(small_key(2048).public))

    def told(role: str, side: Side[Any]) -> Side[Any]:
        return with_lie(side, kind, lie) if role == liar else side

    opened = run_together(
        {"clinic": told("clinic", open_label_side(owner)), "registry": told("registry", open_feature_side(feature))}, {}
    )
    run_together(
        {
            "clinic": told("clinic", grow_label_side(owner, opened["clinic"])),
            "registry": told("registry", grow_feature_side(feature, opened["registry"])),
        },
        {},
    )


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_by_party_and_step(name: str) -> None:
    liar, kind, lie, code, said = LIES[name]

    def changed(tell: Tell) -> Tell:
        arrays: ArraysByName = lie(dict(tell.arrays))
        return replace(tell, arrays=arrays)

    with pytest.raises(InputError) as caught:
        play(liar, kind, changed)
    assert caught.value.reason == code and said in str(caught.value) and liar in str(caught.value)
    if code != "public_key":
        assert kind in str(caught.value)
    # No number of anybody's rows, and no ciphertext, is in it.
    assert max(map(len, str(caught.value).split())) < 40


@pytest.mark.parametrize(("liar", "kind"), [("clinic", "splits"), ("registry", "histograms")])
def test_a_message_of_another_step_is_refused(liar: str, kind: str) -> None:
    def moved(tell: Tell) -> Tell:
        return replace(tell, place=replace(tell.place, at=(tell.place.at[0], tell.place.at[1] + 1)))

    with pytest.raises(Conflict, match=f"{liar} is at .*{kind}.*waits for") as caught:
        play(liar, kind, moved)
    assert caught.value.reason == "session_step"


def test_another_version_is_refused() -> None:
    place = place_of("own", 3)
    body = encode_tensors({}, {"at": place.text(0).replace('"trees":1', '"trees":2')})
    with pytest.raises(CoterieError, match='"trees":2') as caught:
        read_message_of(body, Hear("clinic", (place,), 10), 0)
    assert caught.value.reason == "session_step"


def test_parties_that_all_wait_are_no_endless_loop() -> None:
    def waits() -> Side[None]:
        yield Hear("clinic", (place_of("own"),), 10)

    with pytest.raises(InternalError, match="registry"):
        run_together({"registry": waits()}, {})
    assert NOTHING.arrays == {}
