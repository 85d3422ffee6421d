"""A coordinator that is not honest: it swaps keys, tells other terms, replays, exchanges, changes, cuts off and
withholds messages. The party refuses each by name, and hands out nothing that was not said to it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from server_kit import Opener
from sessions_kit import Liar, Lie, made, parties, transport_of

from coterie.client_sdk.party.mail import PIECE
from coterie.client_sdk.party.pins import Judge, refuse, trust_first_use
from coterie.client_sdk.party.session import SessionClient
from coterie.errors import CoterieError
from coterie.privacy.secagg.keys import KeyPair
from coterie.privacy.session.stream import TAG
from coterie.protocol.session import SEQUENCE_HEADER, KeyOffer, SessionTerms, fingerprint
from coterie.protocol.signing import SigningKey

ROWS = "/v1/party/messages/rows/owner"
KEYS = "/v1/party/messages/keys/owner"
STRANGER = SigningKey.from_seed(b"s" * 32)


class Scene(NamedTuple):
    """Clinic (role owner) and Registry (role feature), which hears the coordinator through ``liar``."""

    owner: SessionClient
    feature: SessionClient
    liar: Liar

    async def read(self) -> bytes:
        """The next message of Clinic, worked in by Registry."""
        message = await self.feature.receive("rows", "owner", patience_s=0.2)
        body = await message.read()
        await self.feature.acknowledge("rows", "owner", message.sequence)
        return body


def retold(answer: httpx.Response, content: bytes, **headers: str) -> httpx.Response:
    """An answer with another body, and the headers that fit it."""
    kept = {name: value for name, value in answer.headers.items() if name.lower() not in ("content-length", *headers)}
    return httpx.Response(answer.status_code, headers={**kept, **headers}, content=content)


def on(path: str, change: Callable[[httpx.Response], httpx.Response]) -> Lie:
    """A lie in the answers to one GET."""

    async def lie(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        fits = request.method == "GET" and request.url.path == path and answer.status_code in (200, 206)
        return change(answer) if fits else answer

    return lie


def body_changed(change: Callable[[bytes], bytes]) -> Lie:
    """A lie about the sealed bytes of a message, with a size that fits."""

    def changed(answer: httpx.Response) -> httpx.Response:
        content = change(answer.content)
        return retold(answer, content, **{"content-range": f"bytes 0-{len(content) - 1}/{len(content)}"})

    return on(ROWS, changed)


def offer_changed(change: Callable[[KeyOffer], KeyOffer]) -> Lie:
    """A lie about Clinic's key."""
    return on(KEYS, lambda told: retold(told, change(KeyOffer.model_validate_json(told.content)).to_bytes()))


def impostor(true: KeyOffer) -> KeyOffer:
    """An offer in Clinic's place by somebody else, who signs it with a key of their own."""
    own = KeyPair.generate().public.hex()
    return true.model_copy(update={"key": own, "identity": STRANGER.public}).signed(STRANGER)


def other_key(true: KeyOffer) -> KeyOffer:
    """Clinic's offer with another key in it."""
    return true.model_copy(update={"key": KeyPair.generate().public.hex()})


def in_place_of_another(true: KeyOffer) -> KeyOffer:
    """An offer that somebody else has made for somebody else."""
    return true.model_copy(update={"identity": STRANGER.public, "recipient": "auditor"}).signed(STRANGER)


@pytest.mark.parametrize(
    ("change", "code"),
    [(impostor, "partner_changed"), (other_key, "signature_invalid"), (in_place_of_another, "session_terms")],
)
def test_a_key_that_the_coordinator_swapped_is_refused(
    coordinator: Opener, tmp_path: Path, change: Callable[[KeyOffer], KeyOffer], code: str
) -> None:
    async def act(scene: Scene) -> None:
        scene.feature._store.pins.pin("Clinic", fingerprint(scene.owner._store.key.public))  # pyright: ignore[reportPrivateUsage]
        scene.liar.lie = offer_changed(change)
        for _ in range(2):
            await refused(code, scene.read())
            await refused(code, scene.feature.send("rows", "owner", b"secret"))
        scene.liar.lie = None
        await scene.owner.send("rows", "feature", b"true")
        assert await scene.read() == b"true"

    staged(coordinator, tmp_path, act)


def test_a_key_that_the_coordinator_made_is_refused_where_none_is_pinned(coordinator: Opener, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.liar.lie = offer_changed(impostor)
        error = await refused("partner_unknown", scene.feature.send("rows", "owner", b"secret"))
        assert fingerprint(STRANGER.public) in error.message

    staged(coordinator, tmp_path, act, judge=refuse)


def test_a_party_given_its_own_offer_as_that_of_its_partner_refuses_it(coordinator: Opener, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        keys = scene.feature._store.keys(scene.feature.membership.session, "owner")  # pyright: ignore[reportPrivateUsage]
        assert keys is not None
        scene.liar.lie = offer_changed(lambda _: keys.own)
        await refused("session_terms", scene.read())

    staged(coordinator, tmp_path, act)


def test_parties_that_were_told_different_terms_refuse_each_other(coordinator: Opener, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await refused("session_terms", scene.owner.send("rows", "feature", b"secret"))
        await refused("session_terms", scene.read())

    staged(coordinator, tmp_path, act, join=on_joining(lambda terms: terms.update(message_limit=1)))


def test_a_party_that_joins_again_refuses_other_terms(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            liar = Liar(transport_of(operator))
            async with parties(operator, tmp_path, liar=liar) as (_, party):
                token = (await made(operator))["tokens"]["feature"]
                url = str(operator.http.base_url)
                before = (await party.join(url, token)).membership
                liar.lie = on_joining(lambda terms: terms.update(message_limit=1))
                await refused("session_terms", party.join(url, token))
                liar.lie = None
                assert (await party.join(url, token)).membership == before

    asyncio.run(work())


def cut_off(sealed: bytes) -> bytes:
    """Without its last chunk."""
    return sealed[: -(TAG + 1)]


def one_bit(sealed: bytes) -> bytes:
    """With its last bit changed."""
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


def nothing(sealed: bytes) -> bytes:
    """Without any of its bytes."""
    return b""


def with_more(sealed: bytes) -> bytes:
    """With bytes behind its last chunk."""
    return sealed + b"more"


@pytest.mark.parametrize("change", [cut_off, one_bit, nothing, with_more])
def test_a_message_that_was_changed_or_cut_off_does_not_open(
    coordinator: Opener, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    async def act(scene: Scene) -> None:
        await scene.owner.send("rows", "feature", bytes(65_536) + b"x")
        scene.liar.lie = body_changed(change)
        await refused("session_seal", scene.read())
        scene.liar.lie = None
        assert await scene.read() == bytes(65_536) + b"x"

    staged(coordinator, tmp_path, act)


def test_a_message_that_comes_again_is_refused_under_any_number(coordinator: Opener, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        kept: list[httpx.Response] = []
        for body in (b"one", b"two"):
            await scene.owner.send("rows", "feature", body)
        scene.liar.lie = on(ROWS, lambda answer: (kept.append(answer), answer)[1])
        assert await scene.read() == b"one"
        scene.liar.lie = on(ROWS, lambda answer: retold(answer, kept[0].content, **kept[0].headers))
        await refused("message_order", scene.read())
        scene.liar.lie = on(ROWS, lambda answer: retold(answer, kept[0].content))
        await refused("session_seal", scene.read())
        scene.liar.lie = None
        assert await scene.read() == b"two"

    staged(coordinator, tmp_path, act)


def test_a_message_that_is_given_before_its_turn_is_refused(coordinator: Opener, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.owner.send("rows", "feature", b"first")
        scene.liar.lie = on(ROWS, lambda answer: retold(answer, answer.content, **{SEQUENCE_HEADER.lower(): "1"}))
        await refused("message_order", scene.read())
        scene.liar.lie = None
        assert await scene.read() == b"first"

    staged(coordinator, tmp_path, act)


def test_a_message_of_another_stage_does_not_open(coordinator: Opener, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.owner.send("sums", "feature", b"sums")
        await scene.owner.send("rows", "feature", b"rows")
        kept: list[httpx.Response] = []
        scene.liar.lie = on(ROWS.replace("rows", "sums"), lambda answer: (kept.append(answer), answer)[1])
        await scene.feature.receive("sums", "owner", patience_s=0.2)
        scene.liar.lie = on(ROWS, lambda answer: retold(answer, kept[0].content))
        await refused("session_seal", scene.read())

    staged(coordinator, tmp_path, act)


def test_a_message_that_is_replaced_while_it_is_read_is_refused(coordinator: Opener, tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.owner.send("rows", "feature", bytes(PIECE + 1))
        scene.liar.lie = on(ROWS, replaced)
        await refused("message_differs", scene.read())

    def replaced(answer: httpx.Response) -> httpx.Response:
        begins = answer.headers["content-range"].startswith("bytes 0-")
        return answer if begins else retold(answer, answer.content, etag='"' + "0" * 64 + '"')

    staged(coordinator, tmp_path, act)


@pytest.mark.parametrize("number", ["", "-1", "1.5", "9" * 17, "9" * 5000])
def test_a_message_under_no_number_is_refused(coordinator: Opener, tmp_path: Path, number: str) -> None:
    async def act(scene: Scene) -> None:
        await scene.owner.send("rows", "feature", b"true")
        scene.liar.lie = on(ROWS, lambda told: retold(told, told.content, **{SEQUENCE_HEADER.lower(): number}))
        await refused("not_a_coordinator", scene.read())
        scene.liar.lie = None
        assert await scene.read() == b"true"

    staged(coordinator, tmp_path, act)


def test_a_last_message_that_is_withheld_is_missed_by_the_partner_s_name(coordinator: Opener, tmp_path: Path) -> None:
    async def withheld(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        if request.method == "GET" and answer.headers.get(SEQUENCE_HEADER) == "1":
            nonce = {name: value for name, value in answer.headers.items() if name.lower() == "coterie-nonce"}
            return httpx.Response(204, headers=nonce)
        return answer

    async def act(scene: Scene) -> None:
        for body in (b"first", b"last"):
            await scene.owner.send("rows", "feature", body)
        scene.liar.lie = withheld
        assert await scene.read() == b"first"
        error = await refused("partner_silent", scene.read())
        assert "Clinic" in error.message
        scene.liar.lie = None
        assert await scene.read() == b"last"

    staged(coordinator, tmp_path, act)


def test_a_receipt_for_other_bytes_leaves_the_message_in_the_outbox(coordinator: Opener, tmp_path: Path) -> None:
    async def lie(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        if request.method != "PATCH" or "/rows/" not in request.url.path:
            return answer
        return retold(answer, json.dumps({**answer.json(), "sha256": "0" * 64}).encode())

    async def act(scene: Scene) -> None:
        scene.liar.lie = lie
        await refused("message_differs", scene.feature.send("rows", "owner", b"true"))
        assert len(scene.feature.unsent("rows", "owner")) == 1
        scene.liar.lie = None
        assert (await scene.feature.resume(), scene.feature.unsent("rows", "owner")) == (1, [])

    staged(coordinator, tmp_path, act)


def on_joining(change: Callable[[dict[str, Any]], object]) -> Lie:
    """A lie about a session's terms to who joins it."""

    async def lie(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        if request.url.path != "/v1/party/join":
            return answer
        told = answer.json()
        change(told["terms"])
        SessionTerms.model_validate(told["terms"])
        return retold(answer, json.dumps(told).encode())

    return lie


async def refused(code: str, work: Awaitable[object]) -> CoterieError:
    """The party's refusal of this code."""
    with pytest.raises(CoterieError) as caught:
        await work
    assert caught.value.reason == code and caught.value.hint
    return caught.value


def staged(
    coordinator: Opener,
    folder: Path,
    act: Callable[[Scene], Awaitable[None]],
    *,
    join: Lie | None = None,
    judge: Judge = trust_first_use,
) -> None:
    """Both parties join, and a test acts. join: a lie to Registry while it joins; judge: of its."""

    async def work() -> None:
        async with coordinator() as operator:
            liar = Liar(transport_of(operator))
            async with parties(operator, folder, liar=liar, judge=judge) as (one, other):
                session = await made(operator)
                url = str(operator.http.base_url)
                owner = await one.join(url, session["tokens"]["owner"])
                liar.lie = join
                feature = await other.join(url, session["tokens"]["feature"])
                liar.lie = None
                await act(Scene(owner, feature, liar))

    asyncio.run(work())
