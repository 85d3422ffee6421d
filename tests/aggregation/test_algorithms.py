"""Methods: their formulas, and that a stateful one is nothing but data to a device."""

from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import FedAvg, FedProx
from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    Begin,
    ClientPart,
    Finish,
    Finished,
    Shapes,
    Step,
    delta,
)
from coterie.aggregation.methods import algorithm
from coterie.aggregation.plan.check import check_plan
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


def test_an_unknown_method_is_refused() -> None:
    for name, parameters in (("magic", {}), ("scaffold", {}), ("fedavg", {"mu": 1.0}), ("fedprox", {})):
        with pytest.raises(errors.ExperimentError, match="There is no algorithm"):
            algorithm(name, parameters)


# A stateful method in the manner of SCAFFOLD, for this test alone: a variate c_i stays on the device, the server
# sends c beside the model, and a second section uploads how c_i changed.


def variates(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return dict(shapes.trained)


def version(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {**shapes.tensors, **{f"c/{name}": shape for name, shape in shapes.trained.items()}}


def begin(context: Begin) -> dict[str, Any]:
    return {name: context.base[f"c/{name}"] - context.client_state[name] for name in context.client_state}


def gradient(data: Any, step: Step) -> dict[str, Any]:
    return {name: value + step.constants[name] for name, value in data.items()}


def finish(context: Finish) -> Finished:
    """c_i⁺ = c_i − c + (x − y_i) / (K · lr), option II of the paper."""
    scale = 1.0 / (context.steps * context.hyper["lr"])
    moved = delta(context)
    after = {
        name: value - context.base[f"c/{name}"] - moved[name] * scale for name, value in context.client_state.items()
    }
    change = {f"c/{name}": after[name] - value for name, value in context.client_state.items()}
    return Finished(sections={"delta": moved, "variate": change}, client_state=after)


def sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
    size = Layout.of(shapes.tensors).size
    return SectionSpec.over("delta", layout, [(0, size)]), SectionSpec.over("variate", layout, [(size, layout.size)])


TOY = Algorithm(
    name="toy",
    client=ClientPart(
        client_state=variates, version=version, begin=begin, gradient=gradient, sections=sections, finish=finish
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
    assert {t.name for t in manifest.stage("train").inputs if t.source == "state"} >= {"round_input/begin/0.weight"}
    assert not [t for graph in ("eval", "infer") for t in manifest.stage(graph).inputs if t.key.startswith("c/")]

    names = [name for name in manifest.layout.names if not name.startswith("c/")]
    half = {
        name: np.full_like(value, 0.5) if name.startswith("c/") else value for name, value in compiled.initial.items()
    }
    assert not any(compiled.initial[f"c/{name}"].any() for name in names)
    batches = [make_batch(seed=seed) for seed in range(3)]
    first = drive(compiled.plan, half, batches)
    assert set(first.client_state) == set(names)
    moved = {name: first.state[f"shared/{name}"] - compiled.initial[name] for name in names}
    for name in names:
        np.testing.assert_allclose(first.client_state[name], -0.5 - moved[name] / (3 * 0.25), rtol=1e-4, atol=1e-5)
    kept = np.concatenate([first.client_state[name].reshape(-1) for name in names])
    np.testing.assert_allclose(first.upload["variate"], kept, rtol=1e-5, atol=1e-6)

    # In the next round the kept state comes back, and it matters.
    again = drive(compiled.plan, half, batches, client_state=first.client_state)
    assert not np.allclose(again.upload["delta"], first.upload["delta"])
    # Where the server's variate equals the device's, the correction vanishes.
    plain = compile_plan(make_experiment(optimizer=sgd(0.25)))
    np.testing.assert_allclose(
        drive(compiled.plan, compiled.initial, batches).upload["delta"],
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
            client=ClientPart(client_state=variates, version=version, begin=begin, sections=sections, finish=broken),
        )
        with pytest.raises(errors.ExperimentError) as caught:
            compile_plan(make_experiment(algorithm=rule))
        assert caught.value.reason == code
