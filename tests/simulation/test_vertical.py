"""A split network in one process: what comes out, what the roles see of one another, and what protections do to it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.vertical.compile import compile_split
from coterie.aggregation.vertical.split import FeatureRole, LabelRole, SplitNetwork
from coterie.client_sdk.party.agreement import step_text
from coterie.client_sdk.party.learner_store import call_of
from coterie.client_sdk.party.role_work import BatchDone, MessageAwaited, RoleWork, Sent
from coterie.compute import nn, optim
from coterie.compute.nn import losses
from coterie.compute.nn import metrics as nn_metrics
from coterie.privacy.audit.cut import column_leak
from coterie.privacy.audit.membership import auc
from coterie.protocol.cut import CutPolicy, EmbeddingNoise, GradientNoise, RandomisedLabels
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.tensors import encode_tensors, open_tensors
from coterie.simulation import VerticalRun, simulate_vertical

ROWS = 1200


def network(**changes: Any) -> SplitNetwork:
    """A bank that has the label alone, and two that have columns."""
    fields: dict[str, Any] = {
        "name": "fraud",
        "features": (
            FeatureRole(role="shop", features=(Feature(name="basket", shape=(4,)),), model=nn.Linear(4, 4)),
            FeatureRole(role="post", features=(Feature(name="parcel", shape=(3,)),), model=nn.Linear(3, 4)),
        ),
        "labels": LabelRole(
            role="bank",
            schema=DataSchema((), Label(name="fraud", classes=(0, 1))),
            top=nn.Sequential(nn.Tanh(), nn.Linear(8, 2)),
        ),
        "loss": losses.softmax_cross_entropy,
        "metrics": {"accuracy": nn_metrics.accuracy},
        "optimizer": optim.adam(0.02),
        "batch_size": 100,
        "epochs": 3,
    }
    return SplitNetwork(**{**fields, **changes})


def rows(count: int = ROWS, seed: int = 3) -> dict[str, dict[str, Any]]:
    """Rows of which about one in eight is of class 1."""
    rng = np.random.Generator(np.random.PCG64(seed))
    basket, parcel = rng.normal(size=(count, 4)).astype(np.float32), rng.normal(size=(count, 3)).astype(np.float32)
    score = basket.sum(axis=1) + parcel.sum(axis=1) + rng.normal(size=count)
    fraud = (score > 3.2).astype(np.int32)
    return {"shop": {"basket": basket}, "post": {"parcel": parcel}, "bank": {"fraud": fraud}}


def unlabelled(given: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a prediction is made of."""
    return {role: arrays for role, arrays in given.items() if role != "bank"}


def area(run: VerticalRun, given: dict[str, dict[str, Any]]) -> float:
    """How well the network tells the classes of rows apart."""
    scores, y = run.predict(unlabelled(given)), given["bank"]["fraud"]
    margin = scores[:, 1] - scores[:, 0]
    return auc(margin[y == 1].tolist(), margin[y == 0].tolist())


def test_a_role_with_labels_alone_learns_from_those_with_columns() -> None:
    told: list[int] = []
    given, fresh = rows(), rows(seed=4)
    run = simulate_vertical(network(), given, seed=1, on_epoch=lambda epoch, means: told.append(epoch))
    assert told == [1, 2, 3] and [sums.examples for sums in run.epochs] == [ROWS] * 3
    assert area(run, fresh) > 0.9
    measured = run.evaluate(fresh)
    assert measured.examples == ROWS and measured.means()["accuracy"] > 0.85
    before = run.epochs[-1].means()["loss"]
    run.train(given)
    assert run.epochs[0].means()["loss"] < before


def test_a_seed_makes_a_run_again_and_no_seed_makes_another() -> None:
    split, given = network(cut=CutPolicy(compression="int3")), rows(240)
    one, same, other = (simulate_vertical(split, given, seed=seed) for seed in (1, 1, None))
    for role, tensors in one.client_state.items():
        for name, value in tensors.items():
            np.testing.assert_array_equal(value, same.client_state[role][name])
    assert (one.client_state["shop"]["model/weight"] != other.client_state["shop"]["model/weight"]).any()


def test_what_a_role_gets_is_about_the_rows_that_it_is_told_of() -> None:
    """Embeddings of the last epoch are those that a part trained so far makes of these rows."""
    split = network(optimizer=optim.sgd(0.0), epochs=2, batch_size=64)
    given = rows(100)
    run = simulate_vertical(split, given, seed=2)
    seen = run.seen("shop", "bank", "embedding")
    assert sorted(seen.rows.tolist()) == list(range(100))
    state = run.client_state["shop"]
    made = given["shop"]["basket"][seen.rows] @ state["model/weight"].T + state["model/bias"]
    np.testing.assert_allclose(seen.values, made, rtol=1e-5, atol=1e-6)
    assert run.seen("bank", "shop", "gradient").values.shape == (100, 4)
    with pytest.raises(errors.ArgumentValueError, match="No training has sent"):
        run.seen("shop", "post", "embedding")


def test_compression_takes_bytes_off_the_wire_and_little_off_the_network() -> None:
    given, fresh = rows(), rows(seed=4)
    found: dict[str, tuple[int, float]] = {}
    for form in ("float32", "float16", "int8", "int4", "int1", "topk:0.5"):
        run = simulate_vertical(network(cut=CutPolicy(compression=form)), given, seed=1)
        found[form] = (sum(each.size for each in run.traffic.values()), area(run, fresh))
    sizes = {form: size for form, (size, _) in found.items()}
    assert sizes["float32"] > sizes["float16"] > sizes["int8"] > sizes["int4"] > sizes["int1"]
    # 36 batches of 100 rows of 4 numbers, each way with each of two roles: what is left is headers.
    messages, numbers = 12 * 3 * 4, 100 * 4
    header = (sizes["float32"] - messages * numbers * 4) / messages
    assert 0 < header < 300
    assert sizes["int8"] < messages * (numbers + 8 + header + 100)
    for form in ("float16", "int8", "int4"):
        assert found[form][1] > found["float32"][1] - 0.01, form
    assert found["topk:0.5"][1] > 0.8 and found["int1"][1] > 0.8


def test_a_network_without_protection_leaks_its_labels() -> None:
    run = simulate_vertical(network(), rows(), seed=1)
    for role in ("shop", "post"):
        leak = run.label_leak(role)
        assert leak.norm > 0.85 and leak.direction > 0.95 and leak.rows == ROWS


@pytest.mark.parametrize(
    ("gradient", "norm", "direction", "utility"),
    [
        # Lengths tell less, and every second gradient is turned round.
        (GradientNoise(kind="max_norm"), 0.85, 0.85, 0.85),
        (GradientNoise(kind="gaussian", scale=1.0), 0.75, 0.85, 0.85),
        (GradientNoise(kind="gaussian", scale=5.0), 0.6, 0.65, 0.75),
        (GradientNoise(kind="marvell", scale=4.0), 0.8, 0.8, 0.85),
    ],
    ids=lambda value: f"{value.kind}-{value.scale:g}" if isinstance(value, GradientNoise) else "",
)
def test_noise_on_gradients_takes_labels_off_them(
    gradient: GradientNoise, norm: float, direction: float, utility: float
) -> None:
    given, fresh = rows(), rows(seed=4)
    run = simulate_vertical(network(cut=CutPolicy(gradient=gradient)), given, seed=1)
    for role in ("shop", "post"):
        leak = run.label_leak(role)
        assert leak.norm < norm and leak.direction < direction, leak
    assert area(run, fresh) > utility


def test_gradients_tell_randomised_labels_and_of_the_true_ones_little() -> None:
    """What is left is what columns tell of labels, which no noise on labels hides."""
    given, fresh = rows(), rows(seed=4)
    run = simulate_vertical(network(cut=CutPolicy(label=RandomisedLabels(epsilon=1.0))), given, seed=1)
    leak = run.label_leak("shop")
    open_leak = simulate_vertical(network(), given, seed=1).label_leak("shop")
    assert leak.norm < open_leak.norm - 0.1 and leak.direction < 0.7 < 0.95 < open_leak.direction
    assert area(run, fresh) > 0.8
    measured = run.evaluate(given).means()["accuracy"]
    # A training is measured on the labels that it has, an evaluation on the true ones.
    assert run.epochs[-1].means()["accuracy"] < measured


def test_noise_on_embeddings_takes_columns_off_them() -> None:
    given, fresh = rows(), rows(seed=4)
    areas: list[float] = []
    leaks: list[float] = []
    for noise in (None, EmbeddingNoise(clip=1.0, deviation=0.2), EmbeddingNoise(clip=1.0, deviation=1.0)):
        # Few steps an epoch: what is seen in the last is of nearly one part.
        split = network(cut=CutPolicy(embedding=noise), batch_size=400, epochs=10)
        run = simulate_vertical(split, given, seed=1)
        seen = run.seen("shop", "bank", "embedding")
        leaks.append(column_leak(seen.values, given["shop"]["basket"][seen.rows], known=200))
        areas.append(area(run, fresh))
        if noise is not None:
            norms = np.linalg.norm(seen.values, axis=1)
            assert norms.mean() < noise.clip + noise.deviation * 2.5
    assert leaks[0] > 0.95 > 0.85 > leaks[1] > leaks[2] and leaks[2] < 0.4
    assert areas[0] > 0.9 and areas[1] > 0.85


def test_filling_is_sent_with_the_noise_of_the_row_that_it_is() -> None:
    """A second noise on the same row would let the recipient average it away."""
    split = network(cut=CutPolicy(embedding=EmbeddingNoise(clip=1.0, deviation=0.5)), batch_size=8, epochs=1)
    role = RoleWork(compile_split(split), "shop", secret=bytes(32), session="s")
    arrays = role.rows_of("train", rows(3)["shop"], None)
    event = next(role.work(call_of("train", arrays, 0, threads=1, trained=0), arrays, role.first_tensors()))
    assert isinstance(event, Sent)
    sent = open_tensors(event.body).tensor("embedding")
    np.testing.assert_array_equal(sent[3:], np.repeat(sent[:1], 5, axis=0))
    assert len(np.unique(sent[:3])) == 12


def test_work_that_is_begun_again_says_the_same_numbers() -> None:
    cut = CutPolicy(compression="int4", embedding=EmbeddingNoise(clip=1.0, deviation=0.5))
    split = network(cut=cut, batch_size=8, epochs=2)
    plan = compile_split(split)
    back = np.ones((8, 4), np.float32)

    def go(role: RoleWork, call: Any, tensors: Any, arrays: Any) -> list[Any]:
        found: list[Any] = []
        work, answer = role.work(call, arrays, tensors), None
        while True:
            try:
                event = next(work) if answer is None else work.send(answer)
            except StopIteration:
                return found
            found.append(event)
            call = event.call if isinstance(event, BatchDone) else call
            answer = None
            if isinstance(event, MessageAwaited):
                packed: dict[str, Any] = {"gradient": np.zeros(16, np.uint8), "gradient/range": back[0, :2]}
                answer = encode_tensors(packed, {"at": step_text(call)})

    def fresh() -> RoleWork:
        return RoleWork(plan, "shop", secret=bytes(32), session="s")

    role = fresh()
    arrays = role.rows_of("train", rows(20)["shop"], None)
    whole = go(role, call_of("train", arrays, 0, threads=1, trained=0), role.first_tensors(), arrays)
    places = [at for at, event in enumerate(whole) if isinstance(event, BatchDone)]
    later = go(fresh(), whole[places[2]].call, whole[places[2]].tensors, arrays)
    bodies = [[event.body for event in part if isinstance(event, Sent)] for part in (whole[places[2] + 1 :], later)]
    assert bodies[0] == bodies[1] and len(bodies[0]) == 3
    # Another session draws other noise of the same secret.
    other = RoleWork(plan, "shop", secret=bytes(32), session="t")
    event = next(other.work(call_of("train", arrays, 0, threads=1, trained=0), arrays, other.first_tensors()))
    assert isinstance(event, Sent) and event.body != whole[0].body


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({}, errors.ArgumentValueError, "not of nobody"),
        ({**rows(8), "other": {}}, errors.ArgumentValueError, "those of the roles bank, shop, post"),
        ({**rows(8), "bank": {"fraud": np.zeros(7, np.int32)}}, errors.DataError, "bank 7, shop 8, post 8"),
        ({**rows(8), "shop": 8}, errors.ArgumentTypeError, "was given 8"),
    ],
)
def test_rows_that_do_not_fit_are_refused(given: Any, error: type[errors.CoterieError], says: str) -> None:
    with pytest.raises(error, match=says):
        simulate_vertical(network(), given)


def test_a_model_that_was_not_trained_predicts_nothing() -> None:
    split = replace(network(), epochs=1)
    plan = compile_split(split)
    run = VerticalRun(plan, {role: bytes(32) for role in plan.manifest.roles})
    with pytest.raises(errors.ConfigurationError) as refused:
        run.predict(unlabelled(rows(8)))
    assert refused.value.reason == "not_trained"
    with pytest.raises(errors.ArgumentTypeError, match="was given True"):
        RoleWork(plan, "bank", secret=bytes(32), session="s").rows_of("predict", True, None)
