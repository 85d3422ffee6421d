"""Updates that lag: weights by hand, FedBuff and FedAsync as their papers write them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.aggregate import aggregate_updates
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import Algorithm, FedAsync, FedAvg, FedBuff
from coterie.aggregation.plan.manifest import METRIC_RANGE, Manifest, NamedRule, Training
from coterie.aggregation.server_optimizers import server_optimizer, server_sgd
from coterie.aggregation.staleness import Lags, freshness
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.layout import Layout
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import read_file, write_file
from coterie.protocol.update import encode_update

LAYOUT = Layout.of({"w": (2, 3), "b": (4,)})
SCHEMA = DataSchema((Feature(name="x"),), Label(name="y"))
Vector = npt.NDArray[np.float64]


def manifest_of(algorithm: Algorithm) -> Manifest:
    return Manifest(
        name="m",
        shape="external",
        schema=SCHEMA,
        layout=LAYOUT,
        sections=(SectionSpec.over("delta", LAYOUT), SectionSpec.extra("metrics", 2, value_range=METRIC_RANGE)),
        hyper={},
        training=Training(batch_size=1),
        algorithm=NamedRule(algorithm.name, dict(algorithm.parameters)),
        optimizer=NamedRule("external", {}),
        stages=(),
    )


class Buffer:
    """Versions and updates in a folder; the last version is the one that a round is about to replace."""

    def __init__(self, folder: Path, algorithm: Algorithm, versions: list[Vector]) -> None:
        self.folder, self.manifest = folder, manifest_of(algorithm)
        self.files = [folder / f"version-{place}.safetensors" for place in range(len(versions))]
        for file, version in zip(self.files, versions, strict=True):
            write_file(file, LAYOUT.unflatten(version.astype(np.float32)))
        self.updates: list[Path] = []
        self.versions: dict[str, int] = {}
        self.bases: dict[str, Path] = {}

    def add(self, delta: Vector, weight: int, place: int) -> None:
        """An update that was trained on the version at a place."""
        task, base = f"task_{len(self.updates):032x}", self.files[place]
        path = self.folder / task
        path.write_bytes(
            encode_update(
                task=task,
                plan=self.manifest.id,
                base=sha256_hex(base.read_bytes()),
                weight=weight,
                steps=1,
                specs=self.manifest.sections,
                sections={"delta": delta.astype(np.float32), "metrics": np.array([weight, 0.0])},
            ).data
        )
        self.updates.append(path)
        lag = len(self.files) - 1 - place
        if lag:
            self.versions[task], self.bases[task] = lag, base

    def next(self, exponent: float) -> Vector:
        """The version after the last."""
        made = aggregate_updates(
            self.manifest,
            base=self.files[-1],
            updates=self.updates,
            server=server_sgd(),
            server_state=None,
            out=self.folder / "out",
            lags=Lags(versions=self.versions, bases=self.bases, exponent=exponent),
        )
        assert not made.rejected
        return LAYOUT.flatten(read_file(Path(made.weights))).astype(np.float64)


def numbers(seed: int, count: int) -> list[Vector]:
    random = np.random.Generator(np.random.PCG64(seed))
    return [random.normal(size=LAYOUT.size).astype(np.float32).astype(np.float64) for _ in range(count)]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
def test_a_buffer_is_weighed_as_fedavg_and_fedbuff_say(exponent: float, tmp_path: Path) -> None:
    versions, deltas = numbers(1, 4), numbers(2, 3)
    places, weights = (3, 2, 0), (10, 5, 20)
    factors = np.array([n * (1.0 + 3 - place) ** -exponent for n, place in zip(weights, places, strict=True)])
    total = np.sum([factor * delta for factor, delta in zip(factors, deltas, strict=True)], axis=0)
    for algorithm, share in ((FedAvg(), factors.sum()), (FedBuff(), sum(weights))):
        folder = tmp_path / algorithm.name
        folder.mkdir()
        buffer = Buffer(folder, algorithm, versions)
        for delta, weight, place in zip(deltas, weights, places, strict=True):
            buffer.add(delta, weight, place)
        np.testing.assert_allclose(buffer.next(exponent), versions[-1] + total / share, atol=1e-5)


@settings(max_examples=25)
@given(alpha=st.floats(0.05, 1.0), place=st.integers(0, 3), exponent=st.floats(0, 2), seed=st.integers(0, 99))
def test_fedasync_mixes_the_clients_model_in(
    alpha: float, place: int, exponent: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    versions, (delta,) = numbers(seed, 4), numbers(seed + 100, 1)
    buffer = Buffer(tmp_path_factory.mktemp("fedasync"), FedAsync(alpha=alpha), versions)
    buffer.add(delta, 7, place)
    # Algorithm 1, line by line: the client's model, then the mix.
    returned = versions[place] + delta
    share = alpha * (3 - place + 1) ** -exponent
    expected = (1 - share) * versions[-1] + share * returned
    np.testing.assert_allclose(buffer.next(exponent), expected, atol=1e-5)


@pytest.mark.parametrize("place", [3, 2])
def test_fedasync_mixes_what_waited_together_as_if_one_after_another(place: int, tmp_path: Path) -> None:
    """While a version is made, several may arrive; the next round counts them all at once."""
    versions, (returned,) = numbers(1, 4), numbers(2, 1)
    buffer = Buffer(tmp_path, FedAsync(alpha=0.5), versions)
    for weight in (7, 1, 30):
        buffer.add(returned - versions[place], weight, place)
    share, expected = 0.5 * (3 - place + 1) ** -0.5, versions[-1]
    for _ in range(3):
        expected = (1 - share) * expected + share * returned
    np.testing.assert_allclose(buffer.next(0.5), expected, atol=1e-5)


def test_an_update_that_lies_about_its_base_is_rejected(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path, FedBuff(), numbers(1, 3))
    buffer.add(numbers(2, 1)[0], 5, 0)
    buffer.add(numbers(3, 1)[0], 5, 2)
    lying = Lags(versions=buffer.versions, bases=dict.fromkeys(buffer.bases, buffer.files[1]))
    made = aggregate_updates(
        buffer.manifest,
        base=buffer.files[-1],
        updates=buffer.updates,
        server=server_optimizer("sgd", {"lr": 1.0, "momentum": 0.0}),
        server_state=None,
        out=tmp_path / "out",
        lags=lying,
    )
    assert [entry.code for entry in made.rejected] == ["wrong_base"] and len(made.accepted) == 1


@given(st.integers(0, 1000), st.floats(0, 10))
def test_freshness_falls_from_one(lag: int, exponent: float) -> None:
    assert freshness(0, exponent) == 1.0
    assert 0 < freshness(lag + 1, exponent) <= freshness(lag, exponent) <= 1


@pytest.mark.parametrize("bad", [(-1, 0.5), (1, -0.1), (1, float("inf")), (1, float("nan"))])
def test_an_impossible_lag_is_refused(bad: tuple[int, float]) -> None:
    with pytest.raises(errors.InputError) as caught:
        freshness(*bad)
    assert caught.value.reason == "staleness_invalid"


@pytest.mark.parametrize(
    ("algorithm", "rounds", "words"),
    [
        (FedBuff(), {}, "FedBuff needs buffered rounds"),
        (FedAsync(), {"mode": "buffered"}, "one by one"),
        (FedAsync(), {}, "one by one"),
    ],
)
def test_asynchronous_methods_say_which_rounds_they_need(
    algorithm: Algorithm, rounds: dict[str, str], words: str
) -> None:
    with pytest.raises(errors.ExperimentError, match=words):
        Experiment(
            name="m",
            model=mlp((1, 2)),
            loss=softmax_cross_entropy,
            optimizer=sgd(0.1),
            schema=SCHEMA,
            rounds=RoundPolicy.model_validate({"rounds": 1, "cohort": 4, **rounds}),
            algorithm=algorithm,
        )


@pytest.mark.parametrize("numbers", [{"alpha": 0.0}, {"alpha": 1.5}, {"rho": -1.0}])
def test_fedasync_refuses_numbers_out_of_range(numbers: dict[str, float]) -> None:
    with pytest.raises(errors.ExperimentError, match="FedAsync needs"):
        FedAsync(**numbers)
