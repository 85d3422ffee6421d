"""What an alignment and a training of trees told is in the reports of both parties, which agree."""

from pathlib import Path

import pytest
import tree_role
from sdk_kit import Coordinator
from split_sessions import both, paired

from coterie.client_sdk.party.alignment import align, count_common
from coterie.client_sdk.party.tree_learner import TreeLearner
from coterie.client_sdk.party.tree_terms import receive_terms, send_terms
from coterie.protocol.learned import learned
from coterie.protocol.report_audit import ReportAudit, audit_reports
from coterie.protocol.session import fingerprint
from coterie.protocol.session_report import SessionReport
from tests.patience import patience

CLINIC, REGISTRY = [f"p{n}" for n in range(30)], [f"p{n}" for n in range(9, 50)]


def told_by(reports: list[SessionReport]) -> set[tuple[str, str, str]]:
    """Of each step who told what kind, the reports having been found to agree."""
    keys = {report.party: fingerprint(report.identity) for report in reports}
    assert audit_reports(reports, keys) == ReportAudit((), ())
    rows = learned(reports)
    assert all(row.is_done and row.messages for row in rows)
    return {(row.disclosure.step, row.disclosure.sender, row.disclosure.kind) for row in rows}


@pytest.mark.parametrize("told", [None, "owner"])
def test_an_alignment_tells_memberships_to_whom_it_says(
    coordinator: Coordinator, tmp_path: Path, told: str | None
) -> None:
    with paired(coordinator, tmp_path, stages=("align", "count")) as pair:
        both(
            lambda: align(pair.owner, CLINIC, told=told, patience_s=patience(60)),
            lambda: align(pair.feature, REGISTRY, told=told, patience_s=patience(60)),
        )
        found = told_by([pair.owner.report(), pair.feature.report()])
        expected = {("align 0", role, kind) for role in ("owner", "feature") for kind in ("row_counts", "blinded_ids")}
        expected |= {("align 0", "feature", "memberships")}
        assert found == (expected | {("align 0", "owner", "memberships")} if told is None else expected)
        both(
            lambda: count_common(pair.owner, CLINIC, stage="count", patience_s=patience(60)),
            lambda: count_common(pair.feature, REGISTRY, stage="count", patience_s=patience(60)),
        )
        found = told_by([pair.owner.report(), pair.feature.report()])
        assert ("align 0", "owner", "intersection_sizes") in found


def test_trees_tell_ciphertexts_sums_and_instance_sets(coordinator: Coordinator, tmp_path: Path) -> None:
    with paired(coordinator, tmp_path) as pair:
        send_terms(pair.owner, tree_role.TERMS)
        terms = receive_terms(pair.feature, "owner", tmp_path / "terms", patience_s=patience(30))
        owner = TreeLearner(pair.owner, terms, tmp_path / "one", patience_s=patience(60), **tree_role.columns("owner"))
        other = TreeLearner(
            pair.feature, terms, tmp_path / "other", patience_s=patience(60), **tree_role.columns("feature")
        )
        with owner, other:
            both(lambda: owner.train(tree_role.rows("owner")), lambda: other.train(tree_role.rows("feature")))
            both(lambda: owner.predict(tree_role.rows("owner")), lambda: other.predict(tree_role.rows("feature")))
        assert told_by([pair.owner.report(), pair.feature.report()]) == {
            ("plan", "owner", "plan"),
            ("calls", "owner", "row_counts"),
            ("calls", "feature", "row_counts"),
            ("train 0", "owner", "ciphertexts"),
            ("train 0", "owner", "instance_sets"),
            ("train 0", "owner", "splits"),
            ("train 0", "feature", "values"),
            ("train 0", "feature", "sums"),
            ("train 0", "feature", "instance_sets"),
            ("predict 1", "feature", "instance_sets"),
        }
