"""A database of the first schema, with a round open in it, goes on under the newest."""

import json
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from structlog.testing import capture_logs

from coterie.aggregation.engine import Round, RoundPhase, TaskLeased, UpdateAccepted, step
from coterie.aggregation.private.secure_aggregation import coordinator_noises
from coterie.protocol.conversion import from_text
from coterie.protocol.lineage import GENESIS, LineageLink, head
from coterie.protocol.privacy import LocalLevel, UserLevel
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.migrate import MIGRATIONS, migrate

OPEN_ROUND = {
    "number": 3, "base": "b" * 64, "phase": "collecting", "leased": 1, "accepted": 1, "failed": 2, "rejected": 0,
    "version": None, "training": {}, "central": None, "central_done": False, "evaluation_leased": 0, "evaluated": 0,
    "evaluation_failed": 0, "federated": {}, "cause": None, "detail": None,
    "config": {
        "cohort": 3, "over_selection": 1.0, "min_updates": 2, "deadline_s": 60.0, "central_evaluation": False,
        "federated_evaluation": False, "evaluation_cohort": 3, "evaluation_deadline_s": 60.0,
    },
}  # fmt: skip


def at_first_revision(path: Path) -> None:
    """A database as the first schema left it: one population, one experiment, one open round with two tasks."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", f"sqlite:///{path}")
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO populations VALUES ('people', '{}', 'd', 0)")
        database.execute("INSERT INTO devices VALUES ('dev', 'people', 'key', 'tok', '{}', 0, 0, NULL)")
        database.execute(
            "INSERT INTO experiments (id, name, population, request, plan, state, progress, round, model, created_at)"
            " VALUES ('exp', 'e', 'people', '{}', 'p', 'running', '{}', 3, 'm', 0)"
        )
        database.execute(
            "INSERT INTO rounds (experiment, number, phase, state, base, bytes_down, version, created_at)"
            " VALUES ('exp', 3, 'collecting', ?, 'b', 0, 0, 0)",
            (json.dumps(OPEN_ROUND),),
        )
        for number in (1, 4):
            row = (number, 1000 * number, "coordinator", "token.created", f"tok_{number}", '{"kind": "admin"}')
            database.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, 'before', 'digest')", row)
        for number, version in ((0, "a" * 64), (2, "b" * 64)):
            database.execute(
                "INSERT INTO models (experiment, round, sha256, size, metrics, created_at)"
                " VALUES ('exp', ?, ?, 1, '{}', 0)",
                (number, version),
            )
        for task, state, upload in (("one", "accepted", "u" * 64), ("two", "leased", None)):
            database.execute(
                "INSERT INTO tasks (id, experiment, round, kind, device, message, state, lease_until, upload, sums,"
                " bytes_up, created_at) VALUES (?, 'exp', 3, 'train', 'dev', '{}', ?, 0, ?, '{}', 0, 0)",
                (task, state, upload),
            )
    database.close()


@pytest.mark.parametrize(
    ("privacy", "noised"),
    [
        (None, False),
        (UserLevel(clip=1.0, delta=1e-6, epsilon=1.0), True),
        (UserLevel(clip=1.0, delta=1e-6, epsilon=1.0, mechanism="blt", min_separation=20), True),
        (UserLevel(clip=1.0, delta=1e-6, epsilon=1.0, mechanism="skellam"), False),
        (LocalLevel(mechanism="gaussian", epsilon=1.0, delta=1e-6, clip=0.5), False),
    ],
)
def test_an_open_round_says_whether_the_coordinator_noises_it(
    tmp_path: Path, privacy: UserLevel | LocalLevel | None, noised: bool
) -> None:
    path = tmp_path / "coterie.db"
    at_first_revision(path)
    asked = {} if privacy is None else {"privacy": privacy.model_dump(mode="json")}
    with sqlite3.connect(path) as database:
        database.execute("UPDATE experiments SET request = ?", (json.dumps(asked),))
    database.close()
    migrate(sqlite_url(path))
    with sqlite3.connect(path) as database:
        (state,) = database.execute("SELECT state FROM rounds").fetchone()
    database.close()
    assert from_text(Round, state).config.noised is noised is coordinator_noises(privacy)


def test_an_open_round_of_the_first_schema_goes_on(tmp_path: Path, usual_logs: None) -> None:
    path = tmp_path / "coterie.db"
    at_first_revision(path)
    with capture_logs() as logs:
        migrate(sqlite_url(path))
        migrate(sqlite_url(path))
    assert [(line["event"], line["log_level"]) for line in logs] == [("database migrated", "warning")]
    with sqlite3.connect(path) as database:
        (state,) = database.execute("SELECT state FROM rounds").fetchone()
        tasks = dict(database.execute("SELECT id, buffer FROM tasks"))
        (client_state,) = database.execute("SELECT client_state FROM populations").fetchone()
        chain = [row[0] for row in database.execute("SELECT before FROM models ORDER BY round")]
        chains = {name: (sequence, digest) for name, sequence, digest in database.execute("SELECT * FROM chains")}
        trail = database.execute("SELECT id, previous, digest FROM audit ORDER BY id").fetchall()
    database.close()
    assert [row[0] for row in trail] == [1, 2] and trail[1][1] == trail[0][2]
    assert chains == {"ledger/people": (0, GENESIS), "audit": (2, trail[1][2])}
    first = head(GENESIS, LineageLink(round=0, version="a" * 64), experiment="exp", plan="p")
    assert chain == [GENESIS, first]
    assert tasks == {"one": 3, "two": None} and client_state == "kept"
    round = from_text(Round, state)
    assert (round.leased, round.accepted, round.failed, round.config.slots) == (1, 1, 2, 3)
    for event in (TaskLeased(), UpdateAccepted(0), UpdateAccepted(0)):
        round = step(round, event)
    assert (round.phase, round.accepted) == (RoundPhase.AGGREGATING, 3)
