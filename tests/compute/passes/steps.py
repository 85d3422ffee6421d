"""Whole steps of models, for the tests of passes."""

from coterie.compute import nn, ops, optim
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import Graph
from coterie.compute.nn.module import Module
from coterie.compute.passes import optimise
from coterie.compute.passes.tune import before_gradients
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named


def adam_step(model: Module, x: TensorSpec, labels: tuple[int, ...], classes: int) -> Graph:
    """The optimised graph of one step of Adam over a batch "x" with labels "y"."""
    return whole_step(model, x, labels, classes, optim.adam(1e-3))


def whole_step(
    model: Module, x: TensorSpec, labels: tuple[int, ...], classes: int, optimizer: optim.Optimizer
) -> Graph:
    """The optimised graph of one step over a batch "x" with labels "y"."""
    rule = optim.packed(optimizer)
    weights = model.init(0)
    state = {f"optimizer/{n}": a for n, a in rule.init({n: Array(a) for n, a in weights.items()}).items()}

    def step(i: GraphInputs) -> dict[str, Array]:
        def group(role: str) -> dict[str, Array]:
            return {name.removeprefix(role): array for name, array in i.items() if name.startswith(role)}

        def loss(p: dict[str, Array]) -> Array:
            z = model(p, i["x"], nn.train())
            return cnp.mean(ops.logsumexp(z) - cnp.sum(z * ops.one_hot(i["y"], classes), axis=-1))

        value, gradients = value_and_grad(loss, before=before_gradients("portable"))(group("shared/"))
        moved, after = rule.update(gradients, group("optimizer/"), group("shared/"), group("hyper/"), i["active"])
        return {"loss": value} | {f"next/{n}": a for n, a in (moved | {f"o/{n}": a for n, a in after.items()}).items()}

    specs = {f"shared/{name}": TensorSpec(array.shape) for name, array in weights.items()}
    specs |= {name: TensorSpec(array.shape) for name, array in state.items()}
    specs |= {f"hyper/{name}": TensorSpec((1,)) for name in rule.hyper}
    specs |= {"active": TensorSpec((1,)), "x": x, "y": TensorSpec(labels, "int32")}
    return optimise(trace_named(step, specs))
