"""Trainings of linear models that are broken off where a kill rarely hits, or gone on with by another program."""

from pathlib import Path
from typing import Any

import linear_role
import pytest
from sdk_kit import Coordinator
from split_sessions import both, paired

from coterie.client_sdk.party.learner_store import LearnerStore
from coterie.errors import ConfigurationError, Conflict
from tests.client_sdk.test_linear_learning import learner_of
from tests.patience import patience


def broken_off(*_: Any) -> None:
    """In place of a step that a program did not come to."""
    raise Conflict("It is killed here.", hint="Start it again.", code="session_step")


@pytest.mark.parametrize("role", ["owner", "feature"])
def test_one_that_is_killed_before_its_result_is_kept_exchanges_no_score_twice(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    finish = LearnerStore.finish

    def one_fails(store: LearnerStore, *given: Any) -> None:
        (broken_off if store.folder.name == f"{role}-linear" else finish)(store, *given)

    rows = {name: linear_role.rows(name) for name in ("owner", "feature")}
    with paired(coordinator, tmp_path) as pair:
        with learner_of(pair, "owner") as owner, learner_of(pair, "feature") as feature:
            monkeypatch.setattr(LearnerStore, "finish", one_fails)
            both(lambda: owner.train(rows["owner"]), lambda: feature.train(rows["feature"]))
            monkeypatch.undo()
        # The other one has its result, and waits for nobody.
        owner, feature = (learner_of(pair, name, patience_s=patience(20)) for name in rows)
        with owner, feature:
            report, nothing = both(lambda: owner.train(rows["owner"]), lambda: feature.train(rows["feature"]))
            assert report.auc > 0.9 and nothing is None
            predicted, nothing = both(lambda: owner.predict(rows["owner"]), lambda: feature.predict(rows["feature"]))
            assert len(predicted) == linear_role.ROWS and nothing is None


def test_a_training_is_not_gone_on_with_in_another_order_of_columns(coordinator: Coordinator, tmp_path: Path) -> None:
    """Coefficients are kept by place."""
    rows = {name: linear_role.rows(name) for name in ("owner", "feature")}

    def stop(done: int, of: int) -> None:
        broken_off()

    with paired(coordinator, tmp_path) as pair:
        with learner_of(pair, "owner") as owner, learner_of(pair, "feature") as feature:
            both(lambda: owner.train(rows["owner"], on_step=stop), lambda: feature.train(rows["feature"], on_step=stop))
        with learner_of(pair, "feature", columns=("s1", "s0")) as feature:
            with pytest.raises(Conflict) as caught:
                feature.train(rows["feature"])
            assert caught.value.reason == "session_step"
        with learner_of(pair, "owner") as owner, learner_of(pair, "feature") as feature:
            both(lambda: owner.train(rows["owner"]), lambda: feature.train(rows["feature"]))
        with learner_of(pair, "feature", columns=("s1",)) as feature:
            feature.skip_done()
            with pytest.raises(ConfigurationError, match="'s0', 's1'") as refused:
                feature.predict(rows["feature"])
            assert refused.value.reason == "party_columns"
