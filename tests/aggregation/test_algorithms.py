"""Methods: their formulas, and that a stateful one is nothing but data to a device."""

from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.horizontal import ALGORITHMS, FedAvg, FedProx, algorithm
from coterie.aggregation.horizontal.algorithm import Algorithm, Begin, ClientPart, Finish, Finished, Step, whole_delta
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.compile import compile_plan
from coterie.compute.optim import sgd
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec
from coterie.protocol.signing import SigningKey


def test_fedprox_without_a_pull_is_fedavg(make_experiment: Any, make_batch: Any, drive: Any) -> None:
    batches = [make_batch(seed=seed) for seed in range(3)]
    average, proximal = (compile_plan(make_experiment(algorithm=rule)) for rule in (FedAvg(), FedProx(0.0)))
    left = drive(average.plan, average.initial, batches)
    right = drive(proximal.plan, proximal.initial, batches)
    np.testing.assert_allclose(left.upload["delta"], right.upload["delta"], rtol=1e-6, atol=1e-7)


def test_fedprox_adds_mu_times_the_distance_to_the_gradient(make_experiment: Any, make_batch: Any, drive: Any) -> None:
    rate, mu = 0.5, 0.3
    compiled = compile_plan(make_experiment(algorithm=FedProx(9.0), optimizer=sgd(rate)))
    plain = compile_plan(make_experiment(optimizer=sgd(rate)))
    first, second = make_batch(seed=1), make_batch(seed=2)
    driven = drive(compiled.plan, compiled.initial, [first, second], hyper={"mu": mu})
    one = drive(plain.plan, plain.initial, [first])
    reached = {name: one.state[f"shared/{name}"] for name in compiled.initial}
    two = drive(plain.plan, reached, [second])
    for name, base in compiled.initial.items():
        expected = two.state[f"shared/{name}"] - rate * mu * (reached[name] - base)
        np.testing.assert_allclose(driven.state[f"shared/{name}"], expected, rtol=1e-5, atol=1e-6)


def test_a_strong_pull_keeps_clients_near(make_experiment: Any, make_batch: Any, drive: Any) -> None:
    compiled = compile_plan(make_experiment(algorithm=FedProx(1.0)))
    batches = [make_batch()] * 20
    lengths = [
        float(np.linalg.norm(drive(compiled.plan, compiled.initial, batches, hyper={"mu": mu}).upload["delta"]))
        for mu in (0.0, 0.5, 1.5)
    ]
    assert lengths[0] > lengths[1] > lengths[2]


def test_one_client_is_centralised_training(make_experiment: Any, make_batch: Any, drive: Any) -> None:
    """Rounds of one step by one client, with a server rate of 1, retrace training without federation."""
    compiled = compile_plan(make_experiment())
    layout = compiled.plan.manifest.layout
    batches = [make_batch(seed=seed) for seed in range(4)]
    central = drive(compiled.plan, compiled.initial, batches)
    weights = dict(compiled.initial)
    for batch in batches:
        delta = drive(compiled.plan, weights, [batch]).upload["delta"]
        weights = layout.unflatten(layout.flatten(weights) + delta)
    for name in weights:
        np.testing.assert_allclose(weights[name], central.state[f"shared/{name}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_methods_are_rebuilt_from_their_names(name: str) -> None:
    rule = ALGORITHMS[name]()
    assert algorithm(rule.name, rule.parameters) == rule


def test_an_unknown_method_is_refused() -> None:
    for name, parameters in (("scaffold", {}), ("fedavg", {"mu": 1.0}), ("fedprox", {})):
        with pytest.raises(errors.ExperimentError, match="There is no algorithm"):
            algorithm(name, parameters)


# A stateful method in the manner of SCAFFOLD, for this test alone: a variate c_i stays on the device, the server
# sends c, and a second section uploads how c_i changed.


def variates(layout: Layout) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in layout.tensors}


def begin(context: Begin) -> dict[str, Any]:
    return {name: context.round_inputs[name] - context.client_state[name] for name in context.base}


def gradient(data: Any, step: Step) -> dict[str, Any]:
    return {name: value + step.constants[name] for name, value in data.items()}


def finish(context: Finish) -> Finished:
    """c_i⁺ = c_i − c + (x − y_i) / (K · lr), option II of the paper."""
    scale = 1.0 / (context.steps * context.hyper["lr"])
    delta = {name: context.end[name] - context.base[name] for name in context.base}
    after = {
        name: context.client_state[name] - context.round_inputs[name] - delta[name] * scale for name in context.base
    }
    change = {name: after[name] - context.client_state[name] for name in context.base}
    return Finished(sections={"delta": delta, "variate": change}, client_state=after)


def sections(layout: Layout) -> tuple[SectionSpec, ...]:
    return (*whole_delta(layout), SectionSpec.extra("variate", layout.size))


TOY = Algorithm(
    name="toy",
    client=ClientPart(
        client_state=variates, round_inputs=variates, begin=begin, gradient=gradient, sections=sections, finish=finish
    ),
)


def test_a_stateful_method_is_data_to_the_device(make_experiment: Any, make_batch: Any, drive: Any) -> None:
    compiled = compile_plan(make_experiment(algorithm=TOY, optimizer=sgd(0.25)))
    manifest = compiled.plan.manifest
    plan = compiled.plan.sign(key := SigningKey.generate())
    check_plan(
        plan.manifest.data, plan.graphs, signature=plan.signature, signer=plan.signer, allowed_signers={key.public}
    )
    assert [spec.name for spec in manifest.sections] == ["delta", "variate", "metrics"]
    assert {t.name for t in manifest.graph("train").inputs if t.source == "state"} >= {"round_input/begin/0.weight"}

    names = manifest.layout.names
    server = {t.name: np.full(t.shape, 0.5, np.float32) for t in manifest.round_inputs}
    batches = [make_batch(seed=seed) for seed in range(3)]
    first = drive(compiled.plan, compiled.initial, batches, round_inputs=server)
    assert set(first.client_state) == set(names)
    delta = {name: first.state[f"shared/{name}"] - compiled.initial[name] for name in names}
    for name in names:
        np.testing.assert_allclose(first.client_state[name], -0.5 - delta[name] / (3 * 0.25), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        first.upload["variate"], manifest.layout.flatten(first.client_state), rtol=1e-5, atol=1e-6
    )

    # In the next round the kept state comes back, and it matters.
    again = drive(compiled.plan, compiled.initial, batches, round_inputs=server, client_state=first.client_state)
    assert not np.allclose(again.upload["delta"], first.upload["delta"])
    # Where the server's variate equals the device's, the correction vanishes.
    plain = compile_plan(make_experiment(optimizer=sgd(0.25)))
    zeroed = {name: np.zeros_like(value) for name, value in server.items()}
    np.testing.assert_allclose(
        drive(compiled.plan, compiled.initial, batches, round_inputs=zeroed).upload["delta"],
        drive(plain.plan, plain.initial, batches).upload["delta"],
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_method_that_forgets_a_section_or_a_state_is_refused(make_experiment: Any) -> None:
    def forgetful(context: Finish) -> Finished:
        return Finished(sections={}, client_state={})

    def stateless(context: Finish) -> Finished:
        return Finished(sections=finish(context).sections, client_state={})

    for broken, code in ((forgetful, "algorithm_sections"), (stateless, "plan_inconsistent")):
        rule = Algorithm(
            name="toy",
            client=ClientPart(
                client_state=variates, round_inputs=variates, begin=begin, sections=sections, finish=broken
            ),
        )
        with pytest.raises(errors.ExperimentError) as caught:
            compile_plan(make_experiment(algorithm=rule))
        assert caught.value.reason == code
