"""Two parties fit a linear model over a real coordinator: that of one process, also where both are killed."""

from pathlib import Path
from typing import Any

import linear_role
import numpy as np
import pytest
from sdk_kit import Coordinator, killed_and_run
from split_sessions import Pair, both, paired, tokens_of

from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.client_sdk.party.linear_learner import LinearLearner
from coterie.errors import ConfigurationError, Conflict, CoterieError, DataError
from coterie.protocol.conversion import to_json
from coterie.protocol.learned import learned
from coterie.protocol.report_audit import ReportAudit, audit_reports
from coterie.protocol.session import fingerprint
from coterie.simulation.linear import simulate_linear
from tests.patience import patience

SCRIPT = Path(linear_role.__file__)
LIVES = {
    "owner": ("begun:1", "agreed:1", "checkpoint_kept:1", "sealed:7", "checkpoint_kept:1", "message_kept:2"),
    "feature": ("agreed:1", "checkpoint_kept:2", "message_kept:2", "accepted:2", "checkpoint_kept:1", "call_done:1"),
}


def learner_of(pair: Pair, role: str, terms: LinearTerms = linear_role.TERMS, **changes: Any) -> LinearLearner:
    """A role's learner in its folder."""
    session = pair.owner if role == "owner" else pair.feature
    told: dict[str, Any] = {**linear_role.columns(role), "patience_s": patience(60), **changes}
    return LinearLearner(session, terms, pair.folder / f"{role}-linear", **told)


def test_roles_that_are_killed_fit_the_model_of_one_process(coordinator: Coordinator, tmp_path: Path) -> None:
    """All rows are one batch, so no drawn order is in it but in the last bits of sums of float64."""
    tokens = tokens_of(coordinator)

    def live(role: str) -> Any:
        return killed_and_run(SCRIPT, (coordinator.url, str(tmp_path / role), tokens[role], role), LIVES[role])

    owner, feature = both(lambda: live("owner"), lambda: live("feature"))
    tables = {role: linear_role.rows(role) for role in ("owner", "feature")}
    expected = simulate_linear(
        linear_role.TERMS, tables, columns={"owner": ("b0",), "feature": ("s0", "s1")}, label="ill", encrypted=False
    )
    for role, found in (("owner", owner), ("feature", feature)):
        model = to_json(expected.models[role])
        assert found["model"]["columns"] == model["columns"]
        assert found["model"]["slopes"] == pytest.approx(model["slopes"], abs=1e-5)
        assert found["model"]["offset"] == pytest.approx(model["offset"], abs=1e-5)
    assert owner["predicted"] == pytest.approx(expected.predict(tables).tolist(), abs=1e-5)
    assert owner["report"]["train"]["auc"] > 0.9


def test_a_session_fits_holds_out_predicts_and_reports(coordinator: Coordinator, tmp_path: Path) -> None:
    with paired(coordinator, tmp_path) as pair:
        held = np.arange(linear_role.ROWS) % 4 == 0
        with learner_of(pair, "owner") as owner, learner_of(pair, "feature") as feature:
            for learner, role in ((owner, "owner"), (feature, "feature")):
                with pytest.raises(ConfigurationError) as caught:
                    learner.predict(linear_role.rows(role))
                assert caught.value.reason == "not_trained"
            steps: list[tuple[int, int]] = []
            report, nothing = both(
                lambda: owner.train(
                    linear_role.rows("owner"), held_out=held, on_step=lambda done, of: steps.append((done, of))
                ),
                lambda: feature.train(linear_role.rows("feature")),
            )
            assert nothing is None and steps == [(1, 3), (2, 3), (3, 3)]
            assert report.auc > 0.8 and report.held_out_auc > 0.5
            few = {role: {k: v[:9] for k, v in linear_role.rows(role).items()} for role in ("owner", "feature")}
            predicted, nothing = both(lambda: owner.predict(few["owner"]), lambda: feature.predict(few["feature"]))
            assert nothing is None and predicted.shape == (9,) and ((predicted > 0) & (predicted < 1)).all()
            assert owner.model.columns == ("b0",) and feature.model.columns == ("s0", "s1")
        reports = [pair.owner.report(), pair.feature.report()]
        keys = {report.party: fingerprint(report.identity) for report in reports}
        assert audit_reports(reports, keys) == ReportAudit((), ())
        told = {(row.disclosure.step, row.disclosure.sender, row.disclosure.kind) for row in learned(reports)}
        assert {("train 0", "owner", "ciphertexts"), ("train 0", "feature", "sums")} <= told
        assert {step for step, _, kind in told if kind == "values"} == {"train 0", "predict 1"}


def test_other_calls_rows_and_data_are_refused_and_nothing_leaves(coordinator: Coordinator, tmp_path: Path) -> None:
    with (
        paired(coordinator, tmp_path) as pair,
        learner_of(pair, "owner") as owner,
        learner_of(pair, "feature") as feature,
    ):
        few = {name: values[:35] for name, values in linear_role.rows("feature").items()}
        for error in both(lambda: owner.train(linear_role.rows("owner")), lambda: feature.train(few)):
            assert isinstance(error, Conflict) and error.reason == "session_step"
            assert "40 rows" in str(error) and "35 rows" in str(error)
        bad: list[tuple[LinearLearner, dict[str, Any], str, str]] = [
            (feature, {"s1": np.array(["a"] * 40)}, "data_dtype", "s1"),
            (feature, {"s0": np.full(40, np.nan)}, "data_cell", "s0"),
            (owner, {"ill": np.full(40, 2.0)}, "data_cell", "ill"),
            (owner, {"ill": np.ones(40)}, "data_classes", "ill"),
        ]
        for learner, change, code, column in bad:
            role = "owner" if learner is owner else "feature"
            with pytest.raises(DataError, match=f"^{role}: .*'{column}'") as caught:
                learner.train({**linear_role.rows(role), **change})
            assert caught.value.reason == code


def test_too_few_rows_end_both_by_name(coordinator: Coordinator, tmp_path: Path) -> None:
    with (
        paired(coordinator, tmp_path) as pair,
        learner_of(pair, "owner") as owner,
        learner_of(pair, "feature") as feature,
    ):
        few = {name: values[:15] for name, values in linear_role.rows("feature").items()}
        with pytest.raises(ConfigurationError, match="15 rows for 2 columns of feature") as caught:
            feature.train(few)  # before a call is begun
        assert caught.value.reason == "linear_rows"
        # Of rows held out a feature owner hears within the call.
        held, rows = np.arange(linear_role.ROWS) >= 15, linear_role.rows
        for error in both(lambda: owner.train(rows("owner"), held_out=held), lambda: feature.train(rows("feature"))):
            assert isinstance(error, ConfigurationError) and error.reason == "linear_rows", error


@pytest.mark.parametrize(
    ("role", "changes", "code"),
    [
        ("owner", {"label": None}, "party_columns"),
        ("feature", {"weight": "s0"}, "party_columns"),
        ("feature", {"columns": ()}, "party_columns"),
        ("owner", {"weight": "b0"}, "party_columns"),
        ("owner", {"terms": LinearTerms(label_owner="owner", feature_owners=("bank",))}, "role_unknown"),
    ],
)
def test_what_a_role_cannot_do_is_refused_at_once(
    coordinator: Coordinator, tmp_path: Path, role: str, changes: dict[str, Any], code: str
) -> None:
    with paired(coordinator, tmp_path) as pair, pytest.raises(CoterieError) as caught:
        learner_of(pair, role, **changes)
    assert caught.value.reason == code
