"""`coterie party report` and `coterie audit session`: the table of who learned what, and an exit code that says whether
the reports agree.
"""

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_flow import next_event, running

from coterie.cli.failures import BAD_INPUT, CANNOT_TELL, FAILED
from coterie.cli.main import run


class Desk(NamedTuple):
    """A folder with a coordinator.

    ask: runs a command in this process and gives its JSON lines; its exit code must be ``code``.
    """

    url: str
    ask: Callable[..., list[dict[str, Any]]]


@pytest.fixture
def desk(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Desk]:
    """Runs until the test is over."""

    def ask(*words: str, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        found = run([*words, "--json"])
        shown = capsys.readouterr()
        assert found == code, shown.err + shown.out
        return [json.loads(line) for line in shown.out.splitlines()]

    with running("server", "--port", "0", "--json", cwd=tmp_path, environment=environment) as server:
        url = next_event(server, "ready")["url"]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COTERIE_URL", url)
        monkeypatch.setenv("COLUMNS", "200")
        yield Desk(url, ask)


def test_reports_are_written_compared_and_refused(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    ask = desk.ask
    made = ask("sessions", "make", "joint", "--role", "owner=Clinic", "--role", "feature=Registry")[0]
    pins: dict[str, str] = {}
    for role, party in (("owner", "Clinic"), ("feature", "Registry")):
        joined = ask("party", "join", desk.url, "--token", made["tokens"][role], "--store", party)[-1]
        pins[party] = joined["fingerprint"]
    Path("rows.csv").write_bytes(b"patient,row")
    for store, partner in (("Clinic", "feature"), ("Registry", "owner")):
        ask("party", "send", partner, "rows.csv", "--store", store, "--trust-first-use")
    ask("party", "receive", "owner", "got.csv", "--store", "Registry", "--wait", "60", "--trust-first-use")

    told, written = ask("party", "report", "--store", "Clinic", "--out", "clinic.report")
    assert (told["event"], told["kind"], told["messages"], told["claim"]) == ("learned", "opaque", 1, "none")
    assert (written["event"], written["state"], written["path"]) == ("session_report", "open", "clinic.report")
    again = ask("party", "report", "--store", "Clinic", "--out", "clinic.report", code=BAD_INPUT)
    assert again[-1]["code"] == "file_unusable"
    ask("party", "report", "--store", "Registry", "--out", "registry.report")

    words = [word for party, mark in pins.items() for word in ("--pin", f"{party}={mark}")]
    both = ("audit", "session", "clinic.report", "registry.report")
    waiting = ask(*both, *words, code=CANNOT_TELL)[-1]
    assert (waiting["verdict"], waiting["faults"]) == ("cannot tell", [])
    assert [(each["sender"], each["first"]) for each in waiting["open"]] == [("feature", 0)]

    # The session ends with a message that Clinic never fetched.
    ask("sessions", "end", "joint")
    for store in ("clinic", "registry"):
        ended = ask("party", "report", "--store", store.title(), "--out", f"{store}.report", "--force")[-1]
        assert (ended["state"], ended["reason"]) == ("ended", "ended")
    withheld = ask(*both, *words, code=FAILED)[-1]
    assert withheld["verdict"] == "differ" and "Message 0 from Registry" in withheld["faults"][0]["text"]

    assert run([*both[:2], "clinic.report", "registry.report", *words]) == FAILED
    shown = capsys.readouterr().out
    assert " learned of " in shown and "opaque: bytes of which coterie does not know what is in them." in shown
    assert "DIFFERENT: Message 0 from Registry (role feature) to Clinic (role owner) in stage messages" in shown

    # Pins of a party's folder serve as well: each has pinned the other.
    alone = ask("audit", "session", "registry.report", "--partners", "Clinic/partners.json", code=CANNOT_TELL)[-1]
    assert [each["rule"] for each in alone["open"]] == ["missing"]
    nobody = ask(*both[:3], code=CANNOT_TELL)[-1]
    assert [each["rule"] for each in nobody["open"]] == ["key", "missing"]

    changed = json.loads(Path("clinic.report").read_bytes())
    changed["steps"][0]["disclosures"][0]["rows"] = 1
    Path("clinic.report").write_text(json.dumps(changed), encoding="utf-8")
    tampered = ask(*both, *words, code=FAILED)[-1]
    assert tampered["faults"][0]["rule"] == "signature" and "Clinic" in tampered["faults"][0]["text"]

    Path("clinic.report").write_bytes(b"\x00rubbish")
    assert ask(*both, *words, code=BAD_INPUT)[-1]["code"] == "report_invalid"
    assert ask(*both[:2], "absent.report", code=BAD_INPUT)[-1]["code"] == "file_unusable"
    assert ask(*both, "--pin", "Clinic=abc", code=BAD_INPUT)[-1]["code"] == "fingerprint_invalid"


def test_a_report_can_be_made_after_this_party_ended_the_session(desk: Desk) -> None:
    from coterie.client_sdk.party.party import Party

    ask = desk.ask
    made = ask("sessions", "make", "joint", "--role", "owner=Clinic", "--role", "feature=Registry")[0]
    ask("party", "join", desk.url, "--token", made["tokens"]["owner"], "--store", "Clinic")
    with Party("Clinic") as party:
        party.session().end("over")
    assert ask("party", "show", "--store", "Clinic")[-1]["sessions"] == []
    (written,) = ask("party", "report", "--store", "Clinic")
    assert (written["state"], written["reason"], written["path"]) == ("ended", "owner", None)
