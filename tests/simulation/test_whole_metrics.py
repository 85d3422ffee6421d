"""Metrics of a whole evaluation set, the batch of an evaluation, losses that see weights, and predictions."""

from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment, rows

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import IFCA
from coterie.aggregation.whole_metrics import auc, c_index, f1
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.protocol.rounds import Best, RoundPolicy, Target
from coterie.simulation import simulate_full

TEST = rows(101, seed=99)


def test_whole_metrics_are_those_of_their_definition() -> None:
    generator = np.random.Generator(np.random.PCG64(3))
    score, label = np.round(generator.normal(size=300), 1), generator.integers(0, 2, 300)
    pairs = score[label == 1][:, None] - score[label == 0][None]
    assert auc(score, label) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean(), rel=1e-12)
    assert auc(np.stack([np.zeros(300), score], 1), label) == auc(score, label)
    said = score > 0
    precision, recall = label[said].mean(), said[label == 1].mean()
    assert f1(score, label) == pytest.approx(2 * precision * recall / (precision + recall), rel=1e-12)
    # By hand: three classes, of which the third is never predicted.
    three = np.eye(3)[[0, 0, 1, 1, 1]]
    assert f1(three, np.array([0, 1, 1, 1, 2])) == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    assert auc(three, np.array([0, 1, 1, 1, 2])) == pytest.approx((7 / 8 + 7 / 12 + 1 / 2) / 3)
    # Events at 1, 2 and 4, censored at 3: known pairs are (1,2) (1,3) (1,4) (2,3) (2,4).
    times = np.array([1.0, 2.0, -3.0, 4.0])
    assert c_index(np.array([4.0, 3.0, 2.0, 1.0]), times) == 1.0
    assert c_index(np.array([4.0, 2.0, 2.0, 3.0]), times) == pytest.approx(3.5 / 5)
    assert (
        auc(score, np.ones(300)) is None
        and c_index(score[:1], times[:1]) is None
        and f1(-score[said], 0 * label[said]) is None
    )


def test_a_metric_of_the_whole_set_is_in_the_history_and_picks_the_best_version_and_stops() -> None:
    asked = experiment(
        evaluation=TEST,
        evaluation_metrics=("auc", "f1"),
        rounds=RoundPolicy(
            rounds=6, cohort=4, best=Best(metric="auc", mode="max"), target=Target(metric="auc", value=0.9, mode="max")
        ),
    )
    done = simulate_full(asked, CLIENTS)
    curve = dict(done.history.curve("auc"))
    assert done.history.reason == "target_reached" and len(curve) < 6
    last = done.history.rounds[-1]
    assert curve[last.round] == last.metrics["auc"] >= 0.9 and max(curve.values()) == last.metrics["auc"]
    assert done.history.best == last.model
    said = done.predict({"x": TEST["x"]})
    assert said.shape == (101, 3) and np.array_equal(said, done.predict(TEST))
    found = auc(said.astype(np.float64), TEST["y"])
    assert found == pytest.approx(last.metrics["auc"], abs=1e-12)
    assert last.metrics["accuracy"] == pytest.approx((said.argmax(1) == TEST["y"]).mean())


def test_the_batch_of_an_evaluation_changes_no_training_and_no_metric() -> None:
    runs = [
        simulate_full(experiment(evaluation=TEST, evaluation_batch=size, infer_batch=7), CLIENTS) for size in (None, 64)
    ]
    assert [run.plan.manifest.stage("eval").batch for run in runs] == [8, 64]
    assert runs[0].history.rounds[-1].model == runs[1].history.rounds[-1].model
    first, second = (run.history.rounds[-1].metrics["loss"] for run in runs)
    assert first == pytest.approx(second, rel=1e-5)
    assert len(runs[0].predict(TEST)) == 101


def against_the_mean(prediction: Array, label: Array, sample_weight: Array) -> Array:
    """The loss of a row beside the mean of the batch's rows, padding left out."""
    own = softmax_cross_entropy(prediction, label)
    return own + xp.sum(own * sample_weight) / xp.maximum(xp.sum(sample_weight), 1.0)


def test_a_loss_that_compares_rows_sees_which_are_padding() -> None:
    # 5 rows and 3 of padding say the same as a batch of 5 does.
    few = {name: value[:5] for name, value in TEST.items()}
    losses = [
        simulate_full(
            experiment(
                loss=against_the_mean, evaluation=few, evaluation_batch=size, rounds=RoundPolicy(rounds=1, cohort=2)
            ),
            CLIENTS,
        )
        .history.rounds[0]
        .metrics["loss"]
        for size in (5, 8)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"evaluation_metrics": ("auc",)}, "evaluation_unsupported", "give evaluation=rows"),
        ({"evaluation_metrics": ("roc",), "evaluation": TEST}, "unknown_metric", "auc, f1, c_index"),
        ({"evaluation_metrics": "auc", "evaluation": TEST}, "experiment_invalid", "tuple of names"),
        ({"evaluation_metrics": ("auc", "auc"), "evaluation": TEST}, "unknown_metric", "listed twice"),
        (
            {"evaluation_metrics": ("auc",), "evaluation": TEST, "algorithm": IFCA(2)},
            "experiment_combination",
            "several",
        ),
        ({"evaluation_batch": 0}, "experiment_invalid", "evaluation_batch must be in 1"),
        ({"evaluation_metrics": ("c_index",), "evaluation": TEST}, "metric_mismatch", "one number, the risk"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_runs(changes: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(errors.ExperimentError, match=words) as caught:
        compile_plan(experiment(model=mlp((4, 8, 3)), **changes))
    assert caught.value.reason == code
