"""What holds for every method: one client is central training, the order of clients does not matter, a job or a
training that is done again gives the same bytes, and what a method cannot work with is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from methods_kit import Batch, Federation

from coterie import errors
from coterie.aggregation.aggregate import aggregate_updates
from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import (
    ALGORITHMS,
    IFCA,
    Algorithm,
    Cyclic,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDyn,
    FedExP,
    FedNova,
    FedProx,
    FedSGD,
    Moon,
    QFedAvg,
    Scaffold,
)
from coterie.aggregation.methods import algorithm, check_method
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer, server_adam, server_sgd
from coterie.compute import nn
from coterie.compute.optim import adam, sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.signing import SigningKey

METHODS: Mapping[str, Algorithm] = {
    rule.name: rule
    for rule in (
        FedAvg(),
        FedSGD(),
        FedProx(0.3),
        Scaffold(4),
        FedNova(),
        FedDyn(4, 0.2),
        FedExP(),
        Moon(),
        QFedAvg(1.0),
        IFCA(2),
        Cyclic(),
        FedBuff(),
        FedAsync(),
    )
}
SERVERS: Mapping[str, ServerOptimizer] = {
    **{f"server {name}": make() for name, make in SERVER_OPTIMIZERS.items()},
    "server momentum": server_sgd(1.0, 0.5),
}
STATEFUL = {"scaffold", "feddyn", "moon"}
# One client with several steps is central training by definition: nothing pulls, contrasts or stretches it. FedSGD
# is so with one step, q-FedAvg with q = 0 and IFCA with one model.
CENTRAL: Mapping[str, Algorithm] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(0.0),
    "scaffold": Scaffold(1),
    "fednova": FedNova(),
    "fedexp": FedExP(),
    "moon": Moon(0.0),
    "qfedavg": QFedAvg(0.0),
    "ifca": IFCA(1),
    "cyclic": Cyclic(),
    "fedbuff": FedBuff(),
    "fedasync": FedAsync(1.0, 0.0),
}

EVERYBODY = RoundPolicy(rounds=3, cohort=3, min_updates=1)
ROUNDS = {
    "cyclic": RoundPolicy(rounds=3, cohort=1, selection="cyclic"),
    "fedbuff": RoundPolicy(rounds=3, cohort=3, min_updates=1, mode="buffered"),
    "fedasync": RoundPolicy(rounds=3, cohort=1, mode="buffered"),
}

Start = Callable[..., Federation]


@pytest.fixture(name="start")
def start_fixture(make_experiment: Any, drive: Any, tmp_path: Path) -> Start:
    def start(algorithm: Algorithm, folder: str = "run", **changes: Any) -> Federation:
        # Compiling takes most of the time of these tests.
        if changes or METHODS.get(algorithm.name) != algorithm:
            wanted = make_experiment(algorithm=algorithm, **({"rounds": rounds_for(algorithm)} | changes))
            return Federation(wanted, compile_plan(wanted), drive, tmp_path / folder)
        if algorithm.name not in COMPILED:
            wanted = make_experiment(algorithm=algorithm, rounds=rounds_for(algorithm))
            COMPILED[algorithm.name] = (wanted, compile_plan(wanted))
        return Federation(*COMPILED[algorithm.name], drive, tmp_path / folder)

    return start


COMPILED: dict[str, tuple[Experiment, CompiledPlan]] = {}


def rounds_for(algorithm: Algorithm) -> RoundPolicy:
    return ROUNDS.get(algorithm.name, EVERYBODY)


@pytest.fixture(name="data")
def data_fixture(make_batch: Any) -> Mapping[int, Sequence[Batch]]:
    return {number: [make_batch(seed=9 * number + step) for step in range(number + 1)] for number in range(3)}


def test_the_table_is_whole() -> None:
    assert set(ALGORITHMS) == set(METHODS)


def named(start: Start, name: str, folder: str = "run") -> Federation:
    """A method, or FedAvg with a server optimizer."""
    return start(METHODS[name], folder) if name in METHODS else start(FedAvg(), folder, server_optimizer=SERVERS[name])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_is_rebuilt_from_its_name_and_numbers(name: str) -> None:
    rule = METHODS[name]
    assert algorithm(rule.name, rule.parameters) == rule
    for wrong in ({**rule.parameters, "another": 1.0}, dict(list(rule.parameters.items())[1:])):
        if wrong != rule.parameters:
            with pytest.raises(errors.ExperimentError) as caught:
                algorithm(rule.name, wrong)
            assert caught.value.reason == "unknown_algorithm"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_plan_has_the_sections_that_the_server_reads(start: Start, name: str) -> None:
    """And one that only says so is refused before anybody trains for it."""
    manifest = start(METHODS[name]).compiled.plan.manifest
    check_method(manifest)
    for section in METHODS[name].server.reads:
        less = replace(manifest, sections=tuple(spec for spec in manifest.sections if spec.name != section))
        with pytest.raises(errors.ExperimentError, match=f"reads the section '{section}'") as caught:
            check_method(less)
        assert caught.value.reason == "algorithm_sections"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_says_whether_it_keeps_state(start: Start, name: str) -> None:
    manifest = start(METHODS[name]).compiled.plan.manifest
    assert METHODS[name].stateful == bool(manifest.client_state) == (name in STATEFUL)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_its_plan_passes_the_check_and_comes_out_the_same_twice(start: Start, name: str) -> None:
    first = start(METHODS[name]).compiled.plan
    second = start(METHODS[name], optimizer=sgd(0.5)).compiled.plan
    assert first.id == second.id and dict(first.graphs) == dict(second.graphs)
    plan = first.sign(key := SigningKey.generate())
    check_plan(
        plan.manifest.data, plan.graphs, signature=plan.signature, signer=plan.signer, allowed_signers={key.public}
    )


@pytest.mark.parametrize("name", sorted(CENTRAL))
def test_one_client_is_central_training(start: Start, drive: Any, make_batch: Any, name: str) -> None:
    """Three rounds of one client, against one training over all of their batches."""
    rounds = [[make_batch(seed=3 * number + step) for step in range(2)] for number in range(3)]
    federation = start(CENTRAL[name])
    # Plain descent has no memory, so it may be cut anywhere.
    plain = start(FedAvg(), "plain").compiled
    first = {tensor: federation.version[f"0/{tensor}" if name == "ifca" else tensor] for tensor in plain.initial}
    central = drive(plain.plan, first, [batch for batches in rounds for batch in batches])
    for batches in rounds:
        federation.round({0: batches})
    for tensor in plain.initial:
        found = federation.version[f"0/{tensor}" if name == "ifca" else tensor]
        np.testing.assert_allclose(found, central.state[f"shared/{tensor}"], rtol=1e-4, atol=1e-5)


def test_fedsgd_with_one_client_is_descent_on_whole_gradients(start: Start, drive: Any, make_batch: Any) -> None:
    whole = make_batch(seed=5, rows=12)
    halves = [{name: array[half] for name, array in whole.items()} for half in (slice(0, 6), slice(6, 12))]
    federation, plain = start(FedSGD()), start(FedAvg(), "plain", batch_size=12).compiled
    central = drive(plain.plan, plain.initial, [whole] * 3)
    for _ in range(3):
        federation.round({0: halves})
    for tensor, value in federation.version.items():
        np.testing.assert_allclose(value, central.state[f"shared/{tensor}"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted({*METHODS, *SERVERS}))
def test_permuting_clients_changes_nothing(start: Start, data: Mapping[int, Sequence[Batch]], name: str) -> None:
    """Under other names the updates are added in another order."""
    straight, turned = named(start, name), named(start, name, "turned")
    for _ in range(2):
        straight.round(data)
        turned.round(data, names={0: 2, 1: 0, 2: 1})
    for tensor, value in straight.version.items():
        np.testing.assert_allclose(turned.version[tensor], value, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["fedavg", "feddyn", "fednova", "scaffold"])
def test_a_client_of_no_weight_changes_nothing(start: Start, data: Mapping[int, Sequence[Batch]], name: str) -> None:
    """Nor how many clients a method believes there were."""
    nothing = {3: [{**batch, "sample_weight": np.zeros_like(batch["sample_weight"])} for batch in data[2]]}
    without, beside = start(METHODS[name]), start(METHODS[name], "beside")
    for _ in range(2):
        without.round({0: data[0], 1: data[1]})
        beside.round({0: data[0], 1: data[1], **nothing})
    for tensor, value in without.version.items():
        assert beside.version[tensor].tobytes() == value.tobytes()


@pytest.mark.parametrize("name", sorted({*METHODS, *SERVERS}))
def test_a_restart_in_mid_round_changes_nothing(
    start: Start, drive: Any, data: Mapping[int, Sequence[Batch]], name: str, tmp_path: Path
) -> None:
    """What a restart does again, a client's training from its committed state or the round's job, gives the same
    bytes.
    """
    federation = named(start, name)
    federation.round(data)
    kept, before, state = dict(federation.kept), dict(federation.version), federation.server_state
    federation.round(data)
    for client, batches in data.items():
        rows = float(sum(batch["sample_weight"].sum() for batch in batches))
        again = drive(federation.compiled.plan, before, batches, client_state=kept[client] or None, weight=rows)
        for found, expected in (
            (again.upload, federation.answers[client].upload),
            (again.client_state, federation.kept[client]),
        ):
            assert {key: value.tobytes() for key, value in found.items()} == {
                key: value.tobytes() for key, value in expected.items()
            }
    folder = tmp_path / "run" / "round2"
    result = aggregate_updates(
        federation.compiled.plan.manifest,
        base=folder / "base",
        updates=sorted(folder.glob("update*"), reverse=True),
        server=federation.experiment.server_optimizer,
        server_state=state,
        out=tmp_path / "again",
    )
    assert Path(result.weights).read_bytes() == (folder / "out" / "weights.safetensors").read_bytes()
    if result.state is not None:
        assert federation.server_state is not None
        assert Path(result.state).read_bytes() == federation.server_state.read_bytes()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_that_does_not_count_changes_nothing(
    start: Start, drive: Any, make_batch: Any, data: Mapping[int, Sequence[Batch]], name: str
) -> None:
    """Bit for bit, also with state of the round before; and what padding rows hold does not matter."""
    federation = start(METHODS[name])
    federation.round({1: data[1]})
    given = {"client_state": federation.kept[1] or None, "weight": 10.0}
    padded = make_batch(seed=7, real=4)
    other = {**padded, "x": np.where(padded["sample_weight"][:, np.newaxis] > 0, padded["x"], np.float32(99))}
    plan, version = federation.compiled.plan, federation.version
    first, second = (
        drive(plan, version, [data[1][0], batch, data[1][1]], active=[1.0, 1.0, 0.0], **given)
        for batch in (padded, other)
    )
    for left, right in ((first.steps[2], first.steps[1]), (first.upload, second.upload)):
        assert {key: value.tobytes() for key, value in left.items()} == {
            key: value.tobytes() for key, value in right.items()
        }


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"ifca"}))
def test_what_is_not_uploaded_stays_as_it_was(start: Start, data: Mapping[int, Sequence[Batch]], name: str) -> None:
    """On the server, and on the device while it trains."""
    federation = start(METHODS[name], uploads=("2.*",))
    before = dict(federation.version)
    for _ in range(2):
        federation.round(data)
    for tensor in ("0.weight", "0.bias"):
        assert federation.version[tensor].tobytes() == before[tensor].tobytes()
        assert all(
            answer.state[f"shared/{tensor}"].tobytes() == before[tensor].tobytes()
            for answer in federation.answers.values()
        )
    assert not np.allclose(federation.version["2.weight"], before["2.weight"])


WITH_STATISTICS = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"ifca"}))
def test_running_statistics_move_by_their_mean_change_whatever_the_method(
    start: Start, data: Mapping[int, Sequence[Batch]], name: str
) -> None:
    federation = start(METHODS[name], model=WITH_STATISTICS)
    before = dict(federation.version)
    federation.round(data)
    rows = {client: sum(batch["sample_weight"].sum() for batch in batches) for client, batches in data.items()}
    for tensor in federation.compiled.plan.manifest.buffers:
        changes = [federation.answers[client].state[f"buffer/{tensor}"] - before[tensor] for client in data]
        expected = before[tensor] + np.average(changes, axis=0, weights=list(rows.values()))
        np.testing.assert_allclose(federation.version[tensor], expected, rtol=1e-5, atol=1e-6)


def test_several_models_have_no_running_statistics(make_experiment: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="running statistics") as caught:
        compile_plan(make_experiment(algorithm=IFCA(2), model=WITH_STATISTICS))
    assert caught.value.reason == "experiment_combination"


BUFFERED = RoundPolicy(rounds=1, cohort=2, mode="buffered")
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "scaffold with Adam": ({"algorithm": Scaffold(4), "optimizer": adam()}, "SCAFFOLD needs optim.sgd"),
    "scaffold with momentum": ({"algorithm": Scaffold(4), "optimizer": sgd(0.1, momentum=0.5)}, "without momentum"),
    "fednova with Nesterov": (
        {"algorithm": FedNova(), "optimizer": sgd(0.1, momentum=0.5, nesterov=True)},
        "not Nesterov's",
    ),
    "fednova with Adam": ({"algorithm": FedNova(), "optimizer": adam()}, "FedNova needs optim.sgd"),
    "feddyn with a server rate": ({"algorithm": FedDyn(4), "server_optimizer": server_sgd(0.5)}, "FedDyn needs"),
    "fedexp with momentum": ({"algorithm": FedExP(), "server_optimizer": server_sgd(1, 0.9)}, "FedExP needs"),
    "q-fedavg with a server rate": ({"algorithm": QFedAvg(), "server_optimizer": server_sgd(2)}, "q-FedAvg needs"),
    "fedsgd with momentum": ({"algorithm": FedSGD(), "optimizer": sgd(0.1, momentum=0.5)}, "FedSGD needs"),
    "fedsgd with decay": ({"algorithm": FedSGD(), "optimizer": sgd(0.1, weight_decay=0.5)}, "no weight decay"),
    "cyclic with a cohort": ({"algorithm": Cyclic()}, "one client a round"),
    "cyclic at random": ({"algorithm": Cyclic(), "rounds": RoundPolicy(rounds=1, cohort=1)}, "in turn"),
    "cyclic with more offers": (
        {"algorithm": Cyclic(), "rounds": RoundPolicy(rounds=1, cohort=1, selection="cyclic", over_selection=2.0)},
        "to one client",
    ),
    "scaffold that stands still": ({"algorithm": Scaffold(4), "optimizer": sgd(0.0)}, "above 0 in every round"),
    "q-fedavg that stands still": (
        {"algorithm": QFedAvg(), "rounds": RoundPolicy(rounds=2, cohort=2, hyper_schedule={"lr": (0.1, 0.0)})},
        "above 0 in every round",
    ),
    "ifca with momentum": ({"algorithm": IFCA(2), "server_optimizer": server_sgd(1, 0.9)}, "that no client chose"),
    "ifca with Adam": ({"algorithm": IFCA(2), "server_optimizer": server_adam()}, "that no client chose"),
    "scaffold in a buffer": ({"algorithm": Scaffold(4), "rounds": BUFFERED}, "one version"),
    "feddyn in a buffer": ({"algorithm": FedDyn(4), "rounds": BUFFERED}, "one version"),
    "scaffold of fewer clients than a round needs": (
        {"algorithm": Scaffold(4), "rounds": RoundPolicy(rounds=1, cohort=6, min_updates=5)},
        "every round needs 5; give it their number, 5 or more",
    ),
    "feddyn of fewer clients than a round needs": (
        {"algorithm": FedDyn(4), "rounds": RoundPolicy(rounds=1, cohort=5)},
        "every round needs 5; give it their number, 5 or more",
    ),
    "fedsgd with epochs": ({"algorithm": FedSGD(), "epochs": 2}, "epochs=1"),
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_a_method_cannot_work_with_is_refused(make_experiment: Any, kind: str) -> None:
    changes, message = REFUSED[kind]
    with pytest.raises(errors.ExperimentError, match=message) as caught:
        make_experiment(**changes)
    assert caught.value.reason == "experiment_combination"


NUMBERS: Mapping[str, Callable[[], Algorithm]] = {
    "no clients": lambda: Scaffold(0),
    "half a client": lambda: FedDyn(1.5),  # pyright: ignore[reportArgumentType]
    "no regulariser": lambda: FedDyn(4, 0.0),
    "negative": lambda: QFedAvg(-1.0),
    "not a number": lambda: FedExP(float("nan")),
    "no heat": lambda: Moon(1.0, 0.0),
    "infinite": lambda: Moon(float("inf")),
    "no cluster": lambda: IFCA(0),
    "too many clusters": lambda: IFCA(65),
}


@pytest.mark.parametrize("kind", sorted(NUMBERS))
def test_a_number_out_of_range_is_refused(kind: str) -> None:
    with pytest.raises(errors.ExperimentError) as caught:
        NUMBERS[kind]()
    assert caught.value.reason == "algorithm_parameter"


def test_moon_needs_a_representation(make_experiment: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="before its last layer"):
        compile_plan(make_experiment(algorithm=Moon(), model=nn.Sequential(nn.Linear(4, 3)).layers[0]))


def test_the_clusters_are_evaluated_by_the_model_that_fits(start: Start, make_batch: Any) -> None:
    """Two kinds of clients with opposite labels: one model cannot fit both, two can."""
    rows = make_batch(seed=1, rows=6)
    opposite = {**rows, "y": (2 - rows["y"]).astype(np.int32)}
    federation = start(IFCA(2), epochs=1)
    for _ in range(20):
        federation.round({0: [rows] * 3, 1: [opposite] * 3})
    choices = [tuple(federation.answers[client].upload["choice"]) for client in (0, 1)]
    assert sorted(choices) == [(0.0, 1.0), (1.0, 0.0)]
    from coterie.aggregation.evaluate import evaluate

    plan = federation.compiled.plan
    for batch in (rows, opposite):
        data = {name: batch[name] for name in ("x", "y")}
        sums = evaluate(plan.graphs, plan.manifest, federation.version, data)
        assert sums.means()["accuracy"] > 0.8


def test_the_export_of_several_models_returns_all_their_outputs(start: Start, make_batch: Any) -> None:
    from coterie.compute.runtime.executable import Executable

    federation = start(IFCA(3), infer_batch=6)
    graph = federation.compiled.plan.manifest.stage("infer")
    feeds = {t.name: federation.version[t.key] for t in graph.from_source("model")}
    output = Executable(federation.compiled.plan.graphs["infer"]).run(feeds | {"batch/x": make_batch()["x"]})["output"]
    assert output.shape == (3, 6, 3)
    assert not np.allclose(output[0], output[1])
