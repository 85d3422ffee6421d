"""Two organisations find their common rows over a session, and train on them; what is refused, and what is not said."""

import csv
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import Coordinator
from split_sessions import Pair, both, paired
from test_split_learning import cancer

from coterie.aggregation.vertical.compile import compile_split
from coterie.client_sdk.control.control import Control
from coterie.client_sdk.party.alignment import Aligned, align, count_common
from coterie.client_sdk.party.alignment_ids import read_ids
from coterie.client_sdk.party.party import Party
from coterie.client_sdk.party.pins import trust_first_use
from coterie.client_sdk.party.plans import receive_plan, send_plan
from coterie.errors import ArgumentTypeError, ArgumentValueError, CoterieError, DataError
from coterie.privacy.psi.blinding import PsiKey, blind_ids
from coterie.privacy.psi.messages import (
    PsiHead,
    PsiHello,
    PsiKind,
    PsiMessage,
    PsiTerms,
    job_of,
    read_hello,
    read_psi_message,
)
from coterie.protocol.session import PartyRole, SessionCreate
from tests.patience import patience

STAGES = ("plan", "learning", "align", "more")
CLINIC = [f"clinic-{number}" for number in range(12)] + [f"shared-{number}" for number in range(20)]
REGISTRY = [f"shared-{number}" for number in reversed(range(20))] + [f"registry-{number}" for number in range(7)]


def aligned(pair: Pair, one: Any, other: Any, **changes: Any) -> tuple[Any, Any]:
    """What both are told. one, other: their rows. changes: of the call, at both."""
    asked: dict[str, Any] = {"patience_s": patience(60), **changes}
    return both(lambda: align(pair.owner, one, **asked), lambda: align(pair.feature, other, **asked))


def table(role: str) -> tuple[list[str], Any, Any]:
    """Ids, columns and labels of a half of the breast cancer data, each in an order of its own."""
    name = {"owner": "breast_hetero_guest.csv", "feature": "breast_hetero_host.csv"}[role]
    folder = os.environ.get("COTERIE_DATA")
    if folder is None:
        pytest.skip("COTERIE_DATA names no folder of data.")
    with (Path(folder) / name).open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["id"]) * {"owner": 7, "feature": 11}[role] % 569)
    rows = rows[: 540 if role == "owner" else 569]
    columns = [name for name in rows[0] if name.startswith("x")]
    values = np.array([[float(row[column]) for column in columns] for row in rows], np.float32)
    labels = np.array([int(row["y"]) for row in rows], np.int32) if role == "owner" else None
    return [row["id"] for row in rows], values, labels


def test_rows_that_were_aligned_in_private_train_a_network(coordinator: Coordinator, tmp_path: Path) -> None:
    (ids, blood, ill), (others, scan, _) = table("owner"), table("feature")
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        mine, theirs = aligned(pair, ids, others)
        assert mine.count == theirs.count == 540
        assert [ids[row] for row in mine.rows] == [others[row] for row in theirs.rows]
        send_plan(pair.owner, compile_split(cancer()))
        plan = receive_plan(pair.feature, "owner", tmp_path / "plan", patience_s=patience(30))
        here = {"owner": blood[mine.rows], "y": ill[mine.rows]}
        there = {"feature": scan[theirs.rows]}
        with pair.learners(plan) as (one, other):
            trained, _ = both(lambda: one.train(here), lambda: other.train(there))
            assert trained[-1].means()["loss"] < 0.5 * trained[0].means()["loss"]
            assert trained[-1].means()["accuracy"] >= 0.9


def test_ids_come_from_files_frames_and_columns_of_other_names(coordinator: Coordinator, tmp_path: Path) -> None:
    given = tmp_path / "clinic.csv"
    lines = [f"{name},00{number},{number}" for number, name in enumerate(CLINIC)]
    given.write_text("Name,Born,blood\n" + "\n".join(lines) + "\n", encoding="utf-8")
    shared = {name: number for number, name in enumerate(CLINIC)}
    names = [f"  {name.upper()} " for name in REGISTRY]
    born = [f"00{shared.get(name, 99)}" for name in REGISTRY]
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        mine, theirs = both(
            lambda: align(pair.owner, given, ("Name", "Born"), patience_s=patience(60)),
            lambda: align(pair.feature, {"who": names, "year": born}, ("who", "year"), patience_s=patience(60)),
        )
        assert [CLINIC[row] for row in mine.rows] == [REGISTRY[row] for row in theirs.rows] and mine.count == 20
        # The same call again is told the same, in another program too, and asks nobody.
        again = align(pair.owner, given, ("Name", "Born"), patience_s=0.0)
        assert again.rows is not None and again.rows.tolist() == mine.rows.tolist()


@pytest.mark.parametrize("told", ["owner", "feature"])
def test_one_party_alone_is_told(coordinator: Coordinator, tmp_path: Path, told: str) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        mine, theirs = aligned(pair, CLINIC, REGISTRY, told=told)
        knows, other, ids = (mine, theirs, CLINIC) if told == "owner" else (theirs, mine, REGISTRY)
        assert other == Aligned(None, None)
        assert {ids[row] for row in knows.rows} == {*CLINIC} & {*REGISTRY}
        again: dict[str, Any] = {"told": told, "stage": "more", "patience_s": patience(60)}
        counts = both(
            lambda: count_common(pair.owner, CLINIC, **again), lambda: count_common(pair.feature, REGISTRY, **again)
        )
        assert counts == ((20, None) if told == "owner" else (None, 20))


def test_several_processes_are_told_the_same(coordinator: Coordinator, tmp_path: Path) -> None:
    ids = [f"id {number}" for number in range(5000)]
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        mine, theirs = both(
            lambda: align(pair.owner, ids, workers=2, patience_s=patience(100)),
            lambda: align(pair.feature, ids[::-2], patience_s=patience(100)),
        )
        assert mine.count == 2500
        assert [ids[row] for row in mine.rows] == [ids[::-2][row] for row in theirs.rows]


def test_too_few_in_common_are_not_told(coordinator: Coordinator, tmp_path: Path) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        for _ in range(2):
            for found in aligned(pair, CLINIC, REGISTRY, minimum=21):
                assert found.reason == "intersection_small" and "20" not in found.message
        few, enough = both(
            lambda: align(pair.owner, CLINIC, stage="more", minimum=21, patience_s=patience(60)),
            lambda: align(pair.feature, REGISTRY, stage="more", patience_s=patience(60)),
        )
        assert few.reason == enough.reason == "intersection_small"


def test_parties_that_align_otherwise_are_both_told_and_may_call_again(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        for number in range(2):
            mine, theirs = both(
                lambda: align(pair.owner, CLINIC, rules=("nfc",), patience_s=patience(60)),
                lambda: align(pair.feature, REGISTRY, rules=("strip",), patience_s=patience(60)),
            )
            assert (mine.reason, theirs.reason) == ("psi_terms", "psi_terms")
            assert "Registry (role feature)" in mine.message and "rules for ids are strip, not nfc" in mine.message
            # Nothing but first words has passed: the next message of the stage has the next number.
            assert pair.owner.status().messages == 0
            with pytest.raises(CoterieError, match=f"the next is {number + 1}"):
                pair.owner.send("align", "feature", b"", sequence=number + 2)
        mine, theirs = aligned(pair, CLINIC, REGISTRY)
        assert [CLINIC[row] for row in mine.rows] == [REGISTRY[row] for row in theirs.rows]


def test_terms_that_were_announced_can_be_taken_back_until_the_partner_says_the_same(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        with pytest.raises(CoterieError) as silent:
            align(pair.owner, CLINIC, rules=(), patience_s=0.5)
        assert silent.value.reason == "partner_silent"

        def partner() -> Any:
            with pytest.raises(CoterieError) as differing:
                align(pair.feature, REGISTRY, patience_s=patience(60))
            assert differing.value.reason == "psi_terms" and "rules for ids are none" in differing.value.message
            return align(pair.feature, REGISTRY, patience_s=patience(60))

        # The partner says other terms than those of the first program: that attempt is over for both.
        mine, theirs = both(lambda: align(pair.owner, CLINIC, patience_s=patience(60)), partner)
        assert mine.count == theirs.count == 20


def test_another_call_in_a_stage_that_is_begun_or_done_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        aligned(pair, CLINIC, REGISTRY)
        for changes in ({"rows": CLINIC[::-1]}, {"told": "owner"}, {"minimum": 3}, {"rules": ()}):
            with pytest.raises(CoterieError) as refused:
                align(pair.owner, changes.pop("rows", CLINIC), **changes)  # pyright: ignore[reportArgumentType]
            assert refused.value.reason == "session_step"


def test_secrets_are_in_a_closed_folder_until_it_is_done_and_go_with_the_session(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        with pytest.raises(CoterieError):
            align(pair.owner, CLINIC, patience_s=0.5)
        (file,) = (tmp_path / "owner" / "alignments").rglob("*.db")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700

        def query(text: str) -> Any:
            opened = sqlite3.connect(file)
            try:
                return opened.execute(text).fetchone()
            finally:
                opened.close()

        (private,) = query("SELECT private FROM attempt")
        assert len(private) == 32 and private in file.read_bytes()
        mine, _ = aligned(pair, CLINIC, REGISTRY)
        assert mine.count == 20
        assert query("SELECT (SELECT COUNT(*) FROM attempt) + (SELECT COUNT(*) FROM points)") == (0,)
        assert private not in file.read_bytes()
        pair.owner.end("done")
        assert not [*(tmp_path / "owner" / "alignments").rglob("*.db")]


def test_neither_the_coordinator_nor_the_partner_keeps_an_id(tmp_path: Path, coordinator: Coordinator) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        aligned(pair, CLINIC, REGISTRY)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(kept) > 5
    for path, data in kept.items():
        assert not any(each.encode() in data for each in (*CLINIC, *REGISTRY)), path
        ours, theirs = ("owner", REGISTRY) if "owner" in path.parts else ("feature", CLINIC)
        assert ours in path.parts and not any(each.encode() in data for each in theirs), path


def test_more_than_two_roles_are_refused_by_name(coordinator: Coordinator, tmp_path: Path) -> None:
    roles = tuple(PartyRole(name=name, party=name.title()) for name in ("clinic", "registry", "insurer"))
    with Control(coordinator.url, token=coordinator.token) as control:
        tokens = control.make_session(SessionCreate(name="three", roles=roles, stages=("align",))).tokens
    with Party(tmp_path, judge=trust_first_use) as party:
        session = party.join(coordinator.url, tokens["clinic"])
        with pytest.raises(CoterieError, match=r"Registry \(role registry\), Insurer \(role insurer\)") as refused:
            align(session, CLINIC)
    assert refused.value.reason == "align_partner"


def test_mistakes_are_refused_before_anything_leaves(coordinator: Coordinator, tmp_path: Path) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
            (lambda: align(pair.owner, CLINIC, stage="rows"), CoterieError, "no stage 'rows'"),
            (lambda: align(pair.owner, CLINIC, told="judge"), ArgumentValueError, "Its roles are feature, owner"),
            (lambda: align(pair.owner, CLINIC, minimum=0), ArgumentValueError, "minimum is from 1"),
            (lambda: align(pair.owner, CLINIC, workers=0), ArgumentValueError, "workers"),
            (lambda: align(pair.owner, CLINIC, rules=("upper",)), ArgumentValueError, "no rule 'upper'"),
            (lambda: align(pair.owner, CLINIC, ids=()), ArgumentTypeError, "names of columns"),
            (lambda: align(pair.owner, CLINIC, ids=("a", "b")), ArgumentTypeError, "one column"),
            (lambda: align(pair.owner, {"id": CLINIC}, ids=("name",)), DataError, "no column 'name'"),
            (lambda: align(pair.owner, tmp_path / "no.csv"), DataError, "no such file"),
            (lambda: align(pair.owner, tmp_path / "rows.xlsx"), DataError, "'.xlsx' is not known"),
            (lambda: align(pair.owner, [*CLINIC, CLINIC[0]]), DataError, "2 of 33 rows share their id"),
            (lambda: align(pair.owner, [*CLINIC, ""]), DataError, "1 of 33 rows have no id"),
        ]
        for call, kind, words in calls:
            with pytest.raises(kind, match="(?s).*") as refused:
                call()
            error = refused.value
            assert isinstance(error, CoterieError)
            told = f"{error.message} {error.hint} {error.details}"
            assert words in told and not any(each in told for each in CLINIC)
        assert pair.owner.status().messages == 0


def test_a_partner_with_very_many_ids_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        refused, _ = both(
            lambda: align(pair.owner, CLINIC, most=26, patience_s=patience(60)),
            lambda: align(pair.feature, REGISTRY, patience_s=3.0),
        )
        assert refused.reason == "align_partner" and "brings 27 ids, more than the 26" in refused.message
        # Whoever allows it calls again, and the partner too.
        mine, theirs = aligned(pair, CLINIC, REGISTRY)
        assert mine.count == theirs.count == 20


HELLO = PsiHello(
    role="feature",
    terms=PsiTerms(columns=1, rules=("nfc", "strip", "casefold"), result="rows"),
    ids=len(REGISTRY),
    minimum=1,
    fresh=bytes(16),
)
ZERO = bytes(32)
LIES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "of small order": (lambda points: ZERO + points[32:], "psi_points"),
    "not on the curve": (lambda points: bytes((2,)) + bytes(31) + points[32:], "psi_points"),
    "in another spelling": (lambda points: b"\xff" * 32 + points[32:], "psi_points"),
    "one less": (lambda points: points[32:], "psi_message"),
    "twice the same": (lambda points: points[:32] + points[:-32], "psi_points"),
}


@pytest.mark.parametrize("lie", LIES)
def test_points_of_a_partner_that_lies_are_refused_with_its_name(
    coordinator: Coordinator, tmp_path: Path, lie: str
) -> None:
    change, code = LIES[lie]

    def partner(pair: Pair) -> None:
        pair.feature.send("align", "owner", PsiMessage(PsiHead(kind=PsiKind.HELLO), HELLO.to_bytes()).to_bytes())
        came = pair.feature.receive("align", "owner", patience_s=patience(60))
        said = read_psi_message(pair.feature.read(came))
        pair.feature.acknowledge(came)
        job = job_of(HELLO, read_hello(said))
        points = change(blind_ids(PsiKey.generate(), [each.encode() for each in REGISTRY]))
        head = PsiHead(kind=PsiKind.POINTS, job=job, items=len(points) // 32)
        pair.feature.send("align", "owner", PsiMessage(head, points).to_bytes())

    with paired(coordinator, tmp_path, stages=STAGES) as pair:
        found, _ = both(lambda: align(pair.owner, CLINIC, patience_s=patience(60)), lambda: partner(pair))
        for again in (False, True):
            if again:
                with pytest.raises(CoterieError) as refused:
                    align(pair.owner, CLINIC, patience_s=patience(60))
                found = refused.value
            assert isinstance(found, CoterieError) and found.reason == code
            assert "Aligning with Registry (role feature) in stage align" in found.message
            told = f"{found.message} {found.hint} {found.details}"
            assert not any(each in told for each in (*CLINIC, *REGISTRY))


def test_ids_stay_out_of_texts() -> None:
    assert CLINIC[0] not in repr(read_ids(CLINIC))
    assert read_ids(CLINIC).digest != read_ids(CLINIC[::-1]).digest
