"""This implementation passes protocol/vectors/secagg_*.json as any other must: from the files alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempt_kit import mask_words

from coterie import errors
from coterie.privacy.secagg import channel, graph, ring, shamir
from coterie.privacy.secagg.context import AttemptContext
from coterie.privacy.secagg.keys import KeyPair, RosterKey, agree, derive, expand, pair_info
from coterie.privacy.secagg.masks import MaskSeed, add_masks
from coterie.privacy.secagg.parameters import Parameters, parameters
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json

FOLDER = Path(__file__).parents[3] / "protocol" / "vectors"
FILES: dict[str, Any] = {
    name: json.loads((FOLDER / f"secagg_{name}.json").read_text("ascii"))
    for name in ("graphs", "keys", "shares", "masks")
}


def cases(file: str, key: str) -> list[Any]:
    items = FILES[file][key]
    return [pytest.param(case, id=f"{key}-{index}-{case.get('name', '')}") for index, case in enumerate(items)]


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def words(text: str) -> ring.RingVector:
    return np.frombuffer(raw(text), "<u4").astype(np.uint32)


def rows(texts: list[str]) -> shamir.FieldShares:
    return np.array([words(text) for text in texts])


@pytest.mark.parametrize("case", cases("graphs", "parameters"))
def test_parameters(case: Any) -> None:
    made = parameters(case["clients"], corrupt=case["corrupt"], dropout=case["dropout"], mode=case["mode"])
    assert (made.neighbours, made.threshold) == (case["neighbours"], case["threshold"])


@pytest.mark.parametrize("case", cases("graphs", "refused_parameters"))
def test_impossible_parameters(case: Any) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        parameters(case["clients"], corrupt=case["corrupt"], dropout=case["dropout"], mode=case["mode"])
    assert caught.value.reason == case["code"]


@pytest.mark.parametrize("case", cases("graphs", "neighbours"))
def test_neighbours(case: Any) -> None:
    assert list(graph.neighbours(case["position"], case["clients"], case["degree"])) == case["neighbours"]


@pytest.mark.parametrize("case", cases("graphs", "order"))
def test_order(case: Any) -> None:
    assert list(graph.order([raw(key) for key in case["keys"]], case["attempt"])) == case["order"]


def _context(value: Any) -> AttemptContext:
    arguments: dict[str, Any] = {**value, "parameters": Parameters(**value["parameters"])}
    return AttemptContext(**arguments)


@pytest.mark.parametrize("case", cases("keys", "context"))
def test_contexts(case: Any) -> None:
    context = _context(json.loads(case["json"]))
    assert canonical_json(to_json(context)).decode() == case["json"]
    assert context.digest.hex() == case["digest"]
    assert context.bind("example", b"abc", 5, b"").hex() == case["bound"]


@pytest.mark.parametrize("case", cases("keys", "agreements"))
def test_agreements(case: Any) -> None:
    context = _context(json.loads(FILES["keys"]["context"][0]["json"]))
    publics = [raw(public) for public in case["publics"]]
    assert [KeyPair.from_private(raw(private)).public for private in case["privates"]] == publics
    places = [RosterKey(*place) for place in zip(case["positions"], publics, strict=True)]
    for one, other in ((0, 1), (1, 0)):
        info = pair_info(context, case["purpose"], places[one], places[other])
        assert info.hex() == case["info"]
        assert agree(raw(case["privates"][one]), publics[other], info).hex() == case["secret"]


@pytest.mark.parametrize("case", cases("keys", "derived"))
def test_derivations(case: Any) -> None:
    assert derive(raw(case["secret"]), raw(case["info"])).hex() == case["key"]


@pytest.mark.parametrize("case", cases("keys", "boxes"))
def test_boxes(case: Any) -> None:
    context = _context(json.loads(FILES["keys"]["context"][0]["json"]))
    data = channel.associated(context, case["phase"], case["sender"], case["recipient"])
    assert data.hex() == case["data"]
    assert (
        channel.seal(raw(case["key"]), raw(case["plaintext"]), data, lambda _: raw(case["nonce"])).hex() == case["box"]
    )
    assert channel.unseal(raw(case["key"]), raw(case["box"]), data).hex() == case["plaintext"]


@pytest.mark.parametrize("case", cases("keys", "refused_keys"))
def test_keys_that_share_no_secret(case: Any) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        agree(raw(case["private"]), raw(case["public"]), b"")
    assert caught.value.reason == case["code"]


@pytest.mark.parametrize("case", cases("keys", "refused_boxes"))
def test_boxes_that_do_not_open(case: Any) -> None:
    with pytest.raises(errors.InputError) as caught:
        channel.unseal(raw(case["key"]), raw(case["box"]), raw(case["data"]))
    assert caught.value.reason == case["code"]


@pytest.mark.parametrize("case", cases("shares", "shares"))
def test_shares(case: Any) -> None:
    given = [raw(case["entropy"])]

    def entropy(count: int) -> bytes:
        taken, given[0] = given[0][:count], given[0][count:]
        return taken

    table = shamir.share(raw(case["secret"]), case["threshold"], len(case["shares"]), entropy)
    assert np.array_equal(table, rows(case["shares"]))
    chosen = rows([case["shares"][point - 1] for point in case["points"]])
    assert shamir.rebuild(case["points"], chosen, case["threshold"]).hex() == case["secret"]


@pytest.mark.parametrize("case", cases("shares", "refused_shares"))
def test_shares_that_open_nothing(case: Any) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        shamir.rebuild(case["points"], rows(case["shares"]), case["threshold"])
    assert caught.value.reason == case["code"]


@pytest.mark.parametrize("case", cases("masks", "streams"))
def test_streams(case: Any) -> None:
    assert expand(raw(case["seed"]), raw(case["info"]), 44).hex() == case["expanded"]
    assert np.array_equal(mask_words(raw(case["seed"]), case["start"], case["stop"]), words(case["words"]))


def _spec(case: Any) -> ring.VectorSpec:
    return ring.VectorSpec(tuple(ring.Segment(*segment) for segment in case["segments"]))


@pytest.mark.parametrize("case", cases("masks", "masked"))
def test_masked_vectors(case: Any) -> None:
    spec = _spec(case)
    assert spec.digest == case["digest"]
    vector = words(case["vector"])
    add_masks(vector, [MaskSeed(raw(mask["seed"]), mask["sign"]) for mask in case["masks"]])
    assert np.array_equal(ring.reduced(vector, spec), words(case["masked"]))
    assert ring.pack(vector, spec).hex() == case["packed"]
    assert np.array_equal(ring.unpack(raw(case["packed"]), spec), words(case["masked"]))


@pytest.mark.parametrize("case", cases("masks", "refused_packed"))
def test_masked_vectors_that_nobody_packs(case: Any) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        ring.unpack(raw(case["packed"]), _spec(FILES["masks"]["masked"][0]))
    assert caught.value.reason == case["code"]
