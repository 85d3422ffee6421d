"""One law for every host: the same updates make the same version, to one unit in the last place of float32.

Two rounds of one small experiment are trained in each engine. What is compared is what becomes of the updates:

- Threads, processes and Ray train bit for bit alike, and make the same bits of it. What costs is to start processes, so
  three draws go to them and one to Ray: methods that keep state on clients, that send arrays, and of several models.
- Clients in one graph train alike to rounding only, since products are summed in another order. What is made of *their*
  updates is held to the law like everybody's.
- The coordinator's worker makes the version of the same updates as files, some of which are lost; and of the
  accumulators of two edge aggregators, one of which lies below the other.
- A masked sum is over whole numbers of a grid. It is held to the law against the coordinator's version of the *same
  quantised values*, and those to the updates themselves within a step of the grid; a simulated secret sum has its bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hosts_kit import Coordinator, Leaves, RoundMade, Secret, simulated
from ray_kit import NEEDS_RAY
from simulation_kit import experiment, rows

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import (
    IFCA,
    Algorithm,
    FedAvg,
    FedDyn,
    FedExP,
    FedNova,
    FedProx,
    FedSGD,
    Moon,
    QFedAvg,
    Scaffold,
)
from coterie.aggregation.server_optimizers import server_sgd
from coterie.client_sdk.rows.loading import DataSource
from coterie.errors import ExperimentError
from coterie.privacy.secagg.encoding import rounding
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation

CLIENTS: Final = [rows(24 + 7 * seed, seed) for seed in range(7)]
METHODS: Final[Mapping[str, Algorithm]] = {
    method.name: method
    for method in (
        FedAvg(),
        FedProx(0.1),
        FedSGD(),
        FedNova(),
        FedDyn(len(CLIENTS)),
        FedExP(),
        Moon(),
        QFedAvg(0.1),
        IFCA(2),
        Scaffold(len(CLIENTS)),
    )
}
CODECS: Final = ("float32", "bfloat16", "int8", "topk:0.3+ef", "eden:4", "qsgd:4", "rotate+grid:6", "sign+ef")
LOST: Final[tuple[Leaves, ...]] = ("before training", "before its update is read", "after its update")
OPEN_ONLY: Final = frozenset({"fedexp", "fednova", "ifca", "qfedavg"})
"""Methods with a section that has no public range, and so no place in a ring."""
IN_PROCESSES: Final = frozenset({"fedprox", "ifca", "scaffold"})
POLICY: Final = RoundPolicy(rounds=2, cohort=7, min_updates=5, weight_cap=100, evaluate_every=0)


@dataclass(frozen=True)
class Draw:
    """rounds: of each, when each client leaves."""

    method: str
    codec: str
    rounds: tuple[tuple[Leaves, ...], ...]

    def __str__(self) -> str:
        return f"{self.method}-{self.codec}"

    @property
    def experiment(self) -> Experiment:
        """The one that is drawn."""
        # Methods that are an optimizer of their own take none with momentum.
        server = {"server_optimizer": server_sgd(1.0, momentum=0.5)} if self.method in ("fedavg", "fedprox") else {}
        return experiment(
            algorithm=METHODS[self.method],
            codecs=(self.codec,),
            rounds=POLICY,
            epochs=1,
            secure_aggregation=False,
            **server,
        )


def drawn() -> list[Draw]:
    """Each method once, with codecs and drop-outs by lot: one client or two of the seven leave each round."""
    lot = np.random.Generator(np.random.PCG64(16))
    codecs = [*lot.permutation(CODECS), *lot.choice(CODECS, len(METHODS))]
    draws: list[Draw] = []
    for method, codec in zip(METHODS, codecs, strict=False):
        rounds: list[tuple[Leaves, ...]] = []
        for _ in range(POLICY.rounds):
            leaves: list[Leaves] = ["never"] * len(CLIENTS)
            for client in lot.permutation(len(CLIENTS))[: lot.integers(1, 3)]:
                leaves[client] = LOST[lot.integers(len(LOST))]
            rounds.append(tuple(leaves))
        draws.append(Draw(method, str(codec), tuple(rounds)))
    return draws


DRAWS: Final = drawn()


def same_version(found: np.ndarray, expected: np.ndarray) -> None:
    """The law."""
    np.testing.assert_array_max_ulp(found, expected, maxulp=1)


def same_rounds(found: Sequence[RoundMade], expected: Sequence[RoundMade]) -> None:
    """Bit for bit, updates and versions."""
    for one, other in zip(found, expected, strict=True):
        assert one.assignment.base == other.assignment.base
        assert [update.update for update in one.updates] == [update.update for update in other.updates]
        for left, right in zip(one.updates, other.updates, strict=True):
            assert all(np.array_equal(left.sections[name], right.sections[name]) for name in right.sections)
        assert np.array_equal(one.version, other.version)
        assert one.after.keys() == other.after.keys()
        assert all(np.array_equal(one.after[name], other.after[name]) for name in other.after)


def train(
    draw: Draw, compiled: CompiledPlan, engine: str, workers: int, clients: Sequence[DataSource]
) -> list[RoundMade]:
    return simulated(engine, workers, draw.experiment, compiled, clients, draw.rounds)


def partly_in_files(folder: Path) -> list[DataSource]:
    """The same clients, three of which are files that a worker reads itself."""
    files = [folder / f"{number}.npz" for number in range(4, len(CLIENTS))]
    for file, client in zip(files, CLIENTS[4:], strict=True):
        np.savez(file, allow_pickle=False, **client)
    return [*CLIENTS[:4], *files]


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_every_host_makes_the_same_version(draw: Draw, tmp_path: Path) -> None:
    compiled = compile_plan(draw.experiment)
    expected = train(draw, compiled, "threads", 1, CLIENTS)
    same_rounds(train(draw, compiled, "threads", 2, CLIENTS), expected)
    if draw.method in IN_PROCESSES:
        same_rounds(train(draw, compiled, "processes", 2, partly_in_files(tmp_path)), expected)
    together = train(draw, compiled, "batched:3", 1, CLIENTS)
    for number, made in enumerate([*expected, *together]):
        coordinator = Coordinator(tmp_path / str(number), draw.experiment, compiled.plan.manifest, made)
        whole_and_tree(coordinator, made)
        if number < len(expected):
            masked(draw, coordinator, made, draw.rounds[number])
    for alone, update in zip(expected[0].updates, together[0].updates, strict=True):
        for name, vector in alone.sections.items():
            np.testing.assert_allclose(update.sections[name], vector, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "draw", [pytest.param(draw, marks=NEEDS_RAY, id=str(draw)) for draw in DRAWS if draw.method == "scaffold"]
)
def test_a_ray_cluster_makes_the_same_version_too(draw: Draw, tmp_path: Path) -> None:
    compiled = compile_plan(draw.experiment)
    expected = train(draw, compiled, "threads", 1, CLIENTS)
    same_rounds(train(draw, compiled, "ray:local", 2, partly_in_files(tmp_path)), expected)


def whole_and_tree(coordinator: Coordinator, made: RoundMade) -> None:
    """A coordinator of all devices, and one of an edge aggregator below which another one is."""
    files = coordinator.files()
    ordered = sorted(files.items())
    low = coordinator.edge("low", dict(ordered[:3]))
    edge = coordinator.edge("edge", low | dict(ordered[3:5]))
    for updates in (files, edge | dict(ordered[5:])):
        version, state = coordinator.version(updates)
        same_version(version, made.version)
        assert state.keys() == made.after.keys()
        for name, value in made.after.items():
            # Sums are float64 in every host, and so is what an optimizer keeps of them.
            np.testing.assert_allclose(state[name], value, rtol=1e-12, atol=1e-12)


def masked(draw: Draw, coordinator: Coordinator, made: RoundMade, leaves: Sequence[Leaves]) -> None:
    """The masked sum against the same values in the open."""
    # A ring has a grid of its own: the updates go into it as they came out of their codec.
    sums = SecureAggregation(norm=20.0, corrupt=0.0, dropout=0.3)
    changes: dict[str, Any] = {"codecs": ("float32",), "secure_aggregation": sums}
    if draw.method in OPEN_ONLY:
        with pytest.raises(ExperimentError, match="no public bound"):
            replace(draw.experiment, **changes)
        return
    wanted = replace(draw.experiment, **changes)
    secret = Secret.of(wanted, coordinator, leaves)
    version, _ = coordinator.secret_version(secret)
    quantised, _ = coordinator.version(coordinator.quantised(secret))
    same_version(version, quantised)
    assert np.array_equal(version, secret.simulated(wanted, made))
    for update in made.updates:
        alone, sections = secret.alone(update.number), coordinator.sections(update)
        for section in secret.terms.sections[1:]:
            found = alone.sections[section.name]
            if section.encoding == "grid":
                difference = np.linalg.norm(found / alone.weight - sections[section.name])
                assert difference <= rounding(section, coordinator.manifest.sections) * (section.norm or 0)
            else:
                np.testing.assert_allclose(found, sections[section.name], rtol=0, atol=section.step or 0)
