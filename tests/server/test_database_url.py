"""The database's URL: another file than the folder's own, and what is refused at start."""

import json
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_kit import SCHEMA

from coterie.errors import ConfigurationError
from coterie.protocol.conversion import to_json
from coterie.server.settings import Settings
from coterie.server.store.dialect import database_url, file_of, prepare, sqlite_url
from tests.patience import patience
from tests.prepared import Fork, Program, start

SECRET = "the-secret-of-the-house"


@contextmanager
def coordinator(folder: Path, *options: str, **variables: str) -> Generator[tuple[Program, dict[str, Any]], None, None]:
    """`coterie server` as a process, and the first event it tells; ended by its pid."""
    words = ["server", "--json", "--port", "0", "--folder", str(folder), *options]
    started = start(words, cwd=folder.parent, env=os.environ | variables)
    assert started.stdout is not None and started.stderr is not None
    try:
        yield started, json.loads(started.stdout.readline())
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            started.wait(patience(60))
        if isinstance(started, Fork):
            started.close()
        started.stdout.close()
        started.stderr.close()


def populations(ready: dict[str, Any]) -> list[str]:
    """Their names, as the coordinator tells them."""
    return [entry["name"] for entry in call(ready, "GET", "/v1/populations").json()["items"]]


def call(ready: dict[str, Any], method: str, path: str, **options: Any) -> httpx.Response:
    """One request of the administrator."""
    token = Path(ready["admin_token_file"]).read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"{method} {path}"}
    answer = httpx.request(method, f"{ready['url']}{path}", headers=headers, timeout=patience(60), **options)
    assert answer.is_success, answer.text
    return answer


def test_a_database_in_another_place_is_made_kept_and_held_by_one_coordinator(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "rows.db"
    file.parent.mkdir()
    with coordinator(tmp_path / "one", COTERIE_DATABASE_URL=f"sqlite:///{file}") as (first, ready):
        assert ready["event"] == "ready", ready
        call(ready, "POST", "/v1/populations", json={"name": "people", "data_schema": to_json(SCHEMA)})
        assert file.stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / "one" / "coterie.db").exists()
        # SQLite has one writer's coordinator, whatever their folders are.
        with coordinator(tmp_path / "two", "--database-url", f"sqlite:///{file}") as (second, answer):
            assert (answer["code"], second.wait(patience(60)) != 0) == ("database_in_use", True)
            assert str(first.pid) in answer["message"] and str(file) in answer["message"]
    with coordinator(tmp_path / "one", "--database-url", f"sqlite+aiosqlite:///{file}") as (_, ready):
        assert populations(ready) == ["people"]
    with coordinator(tmp_path / "one") as (_, ready):
        assert (tmp_path / "one" / "coterie.db").exists()


@pytest.mark.parametrize("way", ["option", "variable"])
def test_another_dialect_is_refused_at_start_by_name_and_without_its_password(tmp_path: Path, way: str) -> None:
    url = f"postgresql+asyncpg://coterie:{SECRET}@db.example.org/coterie"
    options = ("--database-url", url) if way == "option" else ()
    variables = {"COTERIE_DATABASE_URL": url} if way == "variable" else {}
    with coordinator(tmp_path / "state", *options, **variables) as (process, answer):
        assert process.wait(patience(60)) not in (0, 1)
        assert answer["code"] == "database_url"
        assert "'postgresql+asyncpg'" in answer["message"] and "only SQLite is supported" in answer["message"]
        assert "sqlite:////" in answer["hint"]
        assert process.stderr is not None and SECRET not in json.dumps(answer) + process.stderr.read()
        assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"nothing {SECRET}", "not a URL"),
        (f"mysql://root:{SECRET}@localhost/x", "'mysql'"),
        ("sqlite+pysqlcipher:///x.db", "'sqlite\\+pysqlcipher'"),
        ("sqlite://", "no file"),
        ("sqlite:///:memory:", "no file"),
        ("sqlite:///file:x?mode=memory&uri=true", "options"),
        ("sqlite:////tmp/x.db?timeout=1", "options"),
        ("sqlite://host/x.db", "host"),
    ],
)
def test_what_is_no_url_of_an_sqlite_file_is_refused(url: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        database_url(url, tmp_path)
    assert caught.value.reason == "database_url" and SECRET not in str(caught.value)


def test_a_relative_path_is_one_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_of(database_url("sqlite:///rows.db", Path("/nowhere"))) == tmp_path.resolve() / "rows.db"
    assert file_of(database_url(None, tmp_path)) == tmp_path.resolve() / "coterie.db"


def test_a_database_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing/rows\.db cannot be used") as caught:
        prepare(sqlite_url(tmp_path / "missing" / "rows.db"))
    assert caught.value.reason == "database_url"


def test_the_url_is_in_no_description_of_the_settings(tmp_path: Path) -> None:
    assert SECRET not in repr(Settings(folder=tmp_path, database_url=f"postgresql://u:{SECRET}@h/d"))
