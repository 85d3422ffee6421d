"""`coterie identities`: a client's key is shown, endorsed and taken; mistakes are named."""

import json
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.cli.failures import OK, USAGE
from coterie.client_sdk.device.endorsement import read_endorsement, stored_endorsement
from coterie.client_sdk.device.store import DeviceStore
from coterie.errors import ConfigurationError


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str]]:
    with pytest.raises(SystemExit) as ended:
        main.main([*words, "--json"])
    return int(str(ended.value.code or 0)), json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_shown_key_is_endorsed_and_the_endorsement_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown = run(capsys, "identities", "show", "--name", "site-1")
    assert (code, len(shown["identity"])) == (OK, 64)
    words = ("identities", "endorse", shown["identity"], "--subject", "site-1", "--key", "issuer.key")
    code, made = run(capsys, *words)
    assert (code, made["subject"], made["path"]) == (OK, "site-1", "site-1.endorsement.json")
    endorsement = read_endorsement(tmp_path / made["path"])
    assert endorsement.is_for(shown["identity"], {made["issuer"]})
    store = DeviceStore(tmp_path / ".coterie" / "site-1")
    assert stored_endorsement(store, endorsement) == stored_endorsement(store, None) == endorsement
    store.close()
    other = DeviceStore(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="not of this device") as refused:
        stored_endorsement(other, endorsement)
    assert refused.value.reason == "endorsement_other"
    other.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("12ab", "--subject", "a"), "KEY is 64 hexadecimal digits"),
        (("a" * 64, "--subject", "not a name"), "--subject must be 1 to 64 letters"),
    ],
)
def test_a_wrong_key_or_subject_is_named(
    words: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, problem = run(capsys, "identities", "endorse", *words, "--key", "issuer.key")
    assert (code, problem["code"]) == (USAGE, "usage")
    assert told in problem["message"]
    assert not list(tmp_path.glob("*.endorsement.json"))


def test_a_file_that_is_no_endorsement_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text("{}")
    for path in (tmp_path / "e.json", tmp_path / "absent.json"):
        with pytest.raises(ConfigurationError, match="is not an endorsement") as refused:
            read_endorsement(path)
        assert refused.value.reason == "endorsement_file"
