"""What roles that learn together tell is in their reports, which agree: also of calls that they did not agree on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import split_role
from sdk_kit import Coordinator
from split_sessions import both, paired

from coterie.aggregation.vertical.compile import compile_split
from coterie.client_sdk.party.plans import receive_plan, send_plan
from coterie.errors import CoterieError
from coterie.protocol.learned import Learned, learned
from coterie.protocol.report_audit import ReportAudit, audit_reports
from coterie.protocol.session import fingerprint
from coterie.protocol.session_report import SessionReport
from tests.patience import patience


@dataclass(frozen=True)
class Told:
    """What a row of the table says of one direction."""

    kind: str
    numbers: int
    rows: int | None
    times: int

    @staticmethod
    def of(row: Learned) -> "Told":
        """Of a row."""
        told = row.disclosure
        return Told(told.kind, told.numbers, told.rows, told.times)


def held_together(reports: list[SessionReport]) -> ReportAudit:
    """Both reports, with their keys pinned."""
    return audit_reports(reports, {report.party: fingerprint(report.identity) for report in reports})


def test_the_reports_of_two_roles_say_what_each_told_by_call(coordinator: Coordinator, tmp_path: Path) -> None:
    owner, feature = split_role.rows("owner"), split_role.rows("feature")
    fewer: dict[str, Any] = {name: values[:20] for name, values in owner.items()}
    with paired(coordinator, tmp_path) as pair:
        send_plan(pair.owner, compile_split(split_role.network()))
        plan = receive_plan(pair.feature, "owner", tmp_path / "plan", patience_s=patience(30))
        with pair.learners(plan) as (here, there):
            for refused in both(lambda: here.train(fewer), lambda: there.train(feature)):
                assert isinstance(refused, CoterieError) and refused.reason == "session_step"
            both(lambda: here.train(owner), lambda: there.train(feature))
            both(lambda: here.evaluate(owner), lambda: there.evaluate(feature))
        reports = [pair.owner.report(), pair.feature.report()]
        assert held_together(reports) == ReportAudit((), ())
        rows = learned(reports)
        assert all(row.is_done and row.messages for row in rows)
        told = {(row.disclosure.step, row.disclosure.sender): Told.of(row) for row in rows}
        assert told == {
            ("plan", "owner"): Told("plan", 0, None, 1),
            ("calls", "owner"): Told("row_counts", 1, None, 1),
            ("calls", "feature"): Told("row_counts", 1, None, 1),
            ("train 0", "feature"): Told("embeddings", 2, split_role.ROWS, split_role.EPOCHS),
            ("train 0", "owner"): Told("gradients", 2, split_role.ROWS, split_role.EPOCHS),
            ("evaluate 1", "feature"): Told("embeddings", 2, split_role.ROWS, 1),
        }
        assert {row.disclosure.plan for row in rows} == {plan.id}
        counted = {(row.disclosure.step, row.disclosure.sender): row.messages for row in rows}
        # 7 batches an epoch, one of an evaluation; two messages for each of the three calls; a manifest and its graphs.
        assert counted["train 0", "owner"] == counted["train 0", "feature"] == split_role.EPOCHS * split_role.STEPS
        assert counted["evaluate 1", "feature"] == 1 and counted["calls", "owner"] == 6
