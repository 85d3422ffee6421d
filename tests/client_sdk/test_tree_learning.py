"""Two parties grow trees over a real coordinator: those of the joined table, also where both are killed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tree_role
from sdk_kit import Coordinator, killed_and_run
from split_sessions import Pair, both, paired, tokens_of

from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.tree_learner import TreeLearner
from coterie.client_sdk.party.tree_terms import receive_terms, send_terms
from coterie.errors import ConfigurationError, Conflict, CoterieError, DataError
from coterie.protocol.conversion import to_json
from coterie.simulation.trees import SimulatedTrees, simulate_trees
from tests.patience import patience

SCRIPT = Path(tree_role.__file__)
LIVES = {
    "owner": ("begun:1", "agreed:1", "checkpoint_kept:1", "sealed:7", "checkpoint_kept:2", "message_kept:3"),
    "feature": ("agreed:1", "checkpoint_kept:2", "message_kept:3", "accepted:2", "checkpoint_kept:2", "call_done:1"),
}


def joined() -> SimulatedTrees:
    """What central training gives."""
    tables = {role: tree_role.rows(role) for role in ("owner", "feature")}
    return simulate_trees(
        tree_role.TERMS, tables, columns={"owner": ("b0",), "feature": ("s0", "s1")}, label="ill", encrypted=False
    )


def learner_of(pair: Pair, role: str, terms: TreeTerms = tree_role.TERMS, **changes: Any) -> TreeLearner:
    """A role's learner in its folder."""
    session = pair.owner if role == "owner" else pair.feature
    told: dict[str, Any] = {**tree_role.columns(role), "patience_s": patience(60), **changes}
    return TreeLearner(session, terms, pair.folder / f"{role}-trees", **told)


def test_roles_that_are_killed_grow_the_trees_of_the_joined_table(coordinator: Coordinator, tmp_path: Path) -> None:
    tokens = tokens_of(coordinator)

    def live(role: str) -> Any:
        return killed_and_run(SCRIPT, (coordinator.url, str(tmp_path / role), tokens[role], role), LIVES[role])

    owner, feature = both(lambda: live("owner"), lambda: live("feature"))
    expected = joined()
    assert owner["forest"] == to_json(expected.forest)
    assert owner["splits"] == to_json(expected.splits["owner"])
    assert feature == {"splits": to_json(expected.splits["feature"])} and feature["splits"]["columns"]
    tables = {role: tree_role.rows(role) for role in ("owner", "feature")}
    assert owner["predicted"] == expected.predict(tables).tolist()


def test_a_session_trains_holds_out_and_predicts(coordinator: Coordinator, tmp_path: Path) -> None:
    with paired(coordinator, tmp_path) as pair:
        send_terms(pair.owner, tree_role.TERMS)
        told = receive_terms(pair.feature, "owner", tmp_path / "terms", patience_s=patience(30))
        assert told == tree_role.TERMS
        held = np.arange(tree_role.ROWS) % 4 == 0
        with learner_of(pair, "owner") as owner, learner_of(pair, "feature") as feature:
            for learner, role in ((owner, "owner"), (feature, "feature")):
                with pytest.raises(ConfigurationError) as caught:
                    learner.predict(tree_role.rows(role))
                assert caught.value.reason == "not_trained"
            report, nothing = both(
                lambda: owner.train(tree_role.rows("owner"), held_out=held),
                lambda: feature.train(tree_role.rows("feature")),
            )
            assert nothing is None
            assert len(report.losses) == len(report.held_out_losses) == 3
            assert report.losses[-1] < report.losses[0] and report.auc > 0.9 and report.held_out_auc > 0.5
            few = {role: {k: v[:9] for k, v in tree_role.rows(role).items()} for role in ("owner", "feature")}
            predicted, nothing = both(lambda: owner.predict(few["owner"]), lambda: feature.predict(few["feature"]))
            assert nothing is None and predicted.shape == (9,) and ((predicted > 0) & (predicted < 1)).all()
            assert owner.forest.importance(tree_role.TERMS.parties, owner.splits)
            with pytest.raises(ConfigurationError, match="no trees"):
                _ = feature.forest
        with learner_of(pair, "feature", columns=("other",)) as feature:
            feature.skip_done()
            with pytest.raises(ConfigurationError, match="takes the columns '") as caught:
                feature.predict({"other": np.zeros(9)})
            assert caught.value.reason == "party_columns"


def test_other_calls_rows_and_data_are_refused_and_nothing_leaves(coordinator: Coordinator, tmp_path: Path) -> None:
    with (
        paired(coordinator, tmp_path) as pair,
        learner_of(pair, "owner") as owner,
        learner_of(pair, "feature") as feature,
    ):
        few = {name: values[:50] for name, values in tree_role.rows("feature").items()}
        first, second = both(lambda: owner.train(tree_role.rows("owner")), lambda: feature.train(few))
        for error in (first, second):
            assert isinstance(error, Conflict) and error.reason == "session_step"
            assert "60 rows" in str(error) and "50 rows" in str(error)
        bad: list[tuple[TreeLearner, dict[str, Any], str, str]] = [
            (feature, {"s1": np.array(["a"] * 60)}, "data_dtype", "s1"),
            (feature, {"s0": np.full(60, np.inf)}, "data_cell", "s0"),
            (feature, {"s0": np.zeros(59)}, "data_lengths", "s1"),
            (owner, {"ill": np.full(60, np.nan)}, "data_cell", "ill"),
            (owner, {"ill": np.full(60, 2.0)}, "data_cell", "ill"),
            (owner, {"ill": np.ones(60)}, "data_classes", "ill"),
        ]
        for learner, change, code, column in bad:
            role = "owner" if learner is owner else "feature"
            with pytest.raises(DataError, match=f"^{role}: .*'{column}'") as caught:
                learner.train({**tree_role.rows(role), **change})
            assert caught.value.reason == code
        missing = {name: values for name, values in tree_role.rows("feature").items() if name != "s1"}
        with pytest.raises(DataError, match="'s1' is missing"):
            feature.train(missing)
        # What was refused has not been begun: both go on.
        report, _ = both(lambda: owner.train(tree_role.rows("owner")), lambda: feature.train(tree_role.rows("feature")))
        assert len(report.losses) == 3


@pytest.mark.parametrize(
    ("role", "changes", "code"),
    [
        ("owner", {"label": None}, "party_columns"),
        ("feature", {"label": "s0"}, "party_columns"),
        ("feature", {"columns": ()}, "party_columns"),
        ("owner", {"columns": ("ill",)}, "party_columns"),
        ("owner", {"terms": TreeTerms(label_owner="owner", feature_owners=("bank",))}, "role_unknown"),
    ],
)
def test_a_learner_that_cannot_be_is_refused(
    coordinator: Coordinator, tmp_path: Path, role: str, changes: dict[str, Any], code: str
) -> None:
    with paired(coordinator, tmp_path) as pair, pytest.raises(CoterieError) as caught:
        learner_of(pair, role, **changes)
    assert caught.value.reason == code
