"""Experiments whose model, loss and optimizer are classes of the MindSpore face."""

# Networks as their authors write them, without types.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, SCHEMA, example, experiment, rows

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.compute import mindspore as ms
from coterie.compute.mindspore import Tensor, as_loss, as_module, as_optimizer, nn, ops
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate, simulate_full, split


class Network(nn.Cell):
    def __init__(self, normalised=True, share=0.0):
        super().__init__()
        self.hidden = nn.Dense(4, 8, has_bias=False)
        self.normal = nn.BatchNorm1d(8) if normalised else nn.LayerNorm(8)
        self.dropout = nn.Dropout(p=share)
        self.head = nn.Dense(8, 3)
        self.scale = ms.Parameter(np.full((1,), 0.5, np.float32), requires_grad=False)

    def construct(self, x):
        x = ops.relu(self.normal(self.hidden(x)))
        return self.head(self.dropout(x)) * self.scale


def of(network: nn.Cell, optimizer: Any, **changes: Any) -> Any:
    return experiment(
        model=as_module(network),
        loss=as_loss(nn.CrossEntropyLoss()),
        optimizer=as_optimizer(optimizer, network),
        **changes,
    )


@pytest.mark.capability("B5")
@pytest.mark.parametrize("rule", ["SGD", "Momentum", "Adam", "AdamWeightDecay"])
def test_one_client_alone_takes_the_steps_of_the_script(rule: str) -> None:
    """One client with one batch: the version that its round commits is what MindSpore's own step makes of it."""

    def made() -> tuple[Network, Any]:
        ms.set_seed(5)
        network = Network()
        options: dict[str, Any] = {"momentum": 0.9} if rule == "Momentum" else {}
        return network, getattr(nn, rule)(network.trainable_params(), 0.02, **options)

    data = rows(24)
    network, optimizer = made()
    wanted = of(
        network,
        optimizer,
        batch_size=24,
        epochs=3,
        holdout=0.0,
        rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
    )
    result = simulate_full(wanted, [data])
    other, rule_of = made()
    step = nn.TrainOneStepCell(nn.WithLossCell(other, nn.CrossEntropyLoss()), rule_of)
    step.set_train()
    for _ in range(3):
        step(Tensor(data["x"]), Tensor(data["y"]))
    for name, value in result.weights.items():
        np.testing.assert_allclose(value, other.parameters_dict()[name].asnumpy(), rtol=2e-3, atol=3e-4)
    assert set(result.weights) == {p.name for p in other.get_parameters()} - {"scale"}
    assert network.hidden.weight.asnumpy().tobytes() == made()[0].hidden.weight.asnumpy().tobytes()


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_clients_train_a_network_with_dropout_and_statistics(engine: str) -> None:
    ms.set_seed(8)
    network = Network(share=0.2)
    history = simulate(of(network, nn.Momentum(network.trainable_params(), 0.05, 0.9)), CLIENTS, engine=engine)
    losses = [value for _, value in history.curve("loss")]
    assert losses[-1] < 0.7 * losses[0]


def test_two_compilations_give_the_same_plan() -> None:
    network = Network(share=0.2)
    wanted = of(network, nn.Adam(network.trainable_params(), 0.01))
    assert compile_plan(wanted).plan.graphs == compile_plan(wanted).plan.graphs


def test_privacy_of_examples_goes_with_a_network_that_does_not_look_at_the_batch() -> None:
    level = ExampleLevel(noise_multiplier=1.0, delta=1e-3, clip=1.0, rows=60)
    policy = RoundPolicy(rounds=2, cohort=2, weight_cap=1, evaluate_every=0)
    for normalised in (True, False):
        network = Network(normalised)
        wanted = of(network, nn.SGD(network.trainable_params(), 0.1), privacy=level, rounds=policy)
        if normalised:
            with pytest.raises(errors.ExperimentError, match="normal.moving_mean. .BatchNorm. mix the rows of a batch"):
                compile_plan(wanted)
        else:
            assert compile_plan(wanted).plan.manifest.layout.names


class Remembers(Network):
    def construct(self, x):
        self.last = x  # here
        return super().construct(x)


def test_a_network_that_changes_itself_is_refused_where_it_is_written() -> None:
    network = Remembers()
    wanted = of(network, nn.SGD(network.trainable_params(), 0.1))
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# here" in text)
    with pytest.raises(errors.ExperimentError, match=rf"test_cells\.py:{line}: Remembers sets the attribute 'last'"):
        compile_plan(wanted)


def test_a_network_that_is_no_module_yet_is_named() -> None:
    with pytest.raises(errors.InputError, match="Network is a Cell") as caught:
        replace(experiment(schema=SCHEMA), model=Network())
    assert "as_module" in str(caught.value.hint)


@pytest.mark.capability("B5")
def test_the_lenet_script_trains_federated(data_dir: Path) -> None:
    script = example("mindspore_lenet")
    file = script.load(str(data_dir))
    train, test = script.rows(file, "train", 600), script.rows(file, "test", 200)
    wanted = script.experiment(test, rounds=4, cohort=3)
    wanted = replace(wanted, epochs=2, holdout=0.0)
    history = simulate(wanted, split(train, [np.arange(start, 600, 3) for start in range(3)]))
    accuracies = [value for _, value in history.curve("accuracy")]
    assert accuracies[-1] > 0.4 > accuracies[0]
