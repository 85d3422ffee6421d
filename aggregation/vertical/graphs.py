"""The graphs of a split network, each as one traced function of named arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from coterie import errors
from coterie.aggregation.compiling import researcher
from coterie.aggregation.compiling.calls import Arrays, BatchCalls, Outputs, Requested
from coterie.aggregation.compiling.describe import NEXT, message
from coterie.aggregation.compiling.starting import traced_state
from coterie.aggregation.compiling.unread import traced
from coterie.aggregation.plan.manifest import SAMPLE_WEIGHT
from coterie.aggregation.plan.stage import PREDICTION
from coterie.aggregation.vertical.first_values import first_value
from coterie.aggregation.vertical.split import MODEL, TOP, SplitNetwork
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import Graph
from coterie.compute.nn import mode as modes
from coterie.compute.nn.calling import forward
from coterie.compute.nn.module import Module, ParameterSpec
from coterie.compute.optim.optimizer import Optimizer
from coterie.compute.optim.packing import packed
from coterie.compute.passes.tune import before_gradients
from coterie.compute.step.gradient import loss_gradient, weighted_mean
from coterie.compute.trace import GraphInputs, TensorSpec
from coterie.protocol.schema import DataSchema

EMBEDDING = "embedding"
GRADIENT = "gradient"

Traced = Callable[[GraphInputs], Outputs]


@dataclass(frozen=True, kw_only=True)
class RoleGraphs:
    """What the graphs of one role have in common: its weights and the state of its optimizer, all of it client state.

    models: the parts of its network, by the names under which it keeps their weights.
    """

    role: str
    split: SplitNetwork
    schema: DataSchema
    models: Mapping[str, Module]

    @cached_property
    def batch(self) -> BatchCalls:
        """The calls on a batch of its rows."""
        return BatchCalls(schema=self.schema, loss=self.split.loss, metrics=self.split.metrics)

    @cached_property
    def specs(self) -> Mapping[str, ParameterSpec]:
        """Its parameters, by ``<part>/<name>``. Raises errors.ExperimentError (``model_mismatch``)."""
        found = {
            f"{part}/{name}": spec
            for part, module in self.models.items()
            for name, spec in researcher.parameters(module).items()
        }
        other = next((name for name, spec in found.items() if spec.role != "shared"), None)
        if other is not None:
            raise errors.ExperimentError(
                f"Role {self.role!r}: parameter {other!r} is {found[other].role}; a split network trains all of its "
                "parameters and keeps no running statistics.",
                hint="Use nn.GroupNorm or nn.LayerNorm in place of nn.BatchNorm.",
                code="model_mismatch",
            )
        return found

    @cached_property
    def optimizer(self) -> Optimizer:
        """The optimizer, arranged for few operators."""
        return packed(self.split.optimizer)

    @cached_property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the client state: weights, and the optimizer's ``optimizer/<name>``."""
        weights = {name: spec.shape for name, spec in self.specs.items()}
        kept = traced_state(self.optimizer, weights).outputs
        return weights | {f"optimizer/{name}": value.type.shape for name, value in kept.items()}

    def begin(self, inputs: GraphInputs) -> Outputs:
        """First weights, from the host's random numbers, and the optimizer's first state."""
        count = iter(range(len(self.specs) * 2))

        def numbers(shape: tuple[int, ...]) -> Array:
            return inputs.request(f"random/{next(count)}", TensorSpec(shape))

        weights = {name: first_value(name, spec, numbers) + 0.0 for name, spec in self.specs.items()}
        state = {f"optimizer/{name}": value for name, value in self.optimizer.init(weights).items()}
        return self.outputs(weights | state)

    def weights(self, inputs: GraphInputs) -> Outputs:
        """Its weights as they are."""
        return {name: self._state_inputs(inputs)[name] for name in self.specs}

    def output(self, part: str, inputs: GraphInputs, weights: Arrays, mode: modes.Mode) -> Array:
        """What a part of the network makes of its batch: ``[B, width]``. Raises errors.ExperimentError."""
        what = f"The model of role {self.role!r}"
        found, _ = self.batch.output(self.models[part], what, inputs, _of_part(weights, part), mode)
        if found.ndim != 2 or found.dtype.name != "float32":
            raise errors.ExperimentError(
                f"{what} must give an embedding float32[rows, width]; it gives {found.dtype}{list(found.shape)}.",
                hint="End it with nn.Flatten() or a layer that gives one vector for each row.",
                code="model_mismatch",
            )
        return found

    def after_step(self, inputs: GraphInputs, weights: Arrays, gradient: Arrays) -> Outputs:
        """Weights and optimizer state after a step."""
        held = self._state_inputs(inputs)
        state = {name.removeprefix("optimizer/"): held[name] for name in self.state if name.startswith("optimizer/")}
        hyper = Requested(inputs, "hyper", dict.fromkeys(self.optimizer.hyper, (1,)))
        given = {name: hyper[name] for name in hyper}
        counted = xp.sum(self._weight(inputs)) if self.optimizer.weighted is not None else xp.full((), 1.0)
        active = xp.ones((1,), dtype="float32")
        after, kept = self.optimizer.step(gradient, state, weights, given, active, weight=counted)
        return self.outputs({**after, **{f"optimizer/{name}": value for name, value in kept.items()}})

    def outputs(self, arrays: Arrays) -> Outputs:
        """All of the client state, as outputs."""
        return {f"{NEXT}client_state/{name}": arrays[name] for name in self.state}

    def _state_inputs(self, inputs: GraphInputs) -> Requested:
        return Requested(inputs, "client_state", self.state)

    def _weight(self, inputs: GraphInputs) -> Array:
        name = f"batch/{SAMPLE_WEIGHT}"
        return inputs[name] if name in inputs else inputs.request(name, TensorSpec((self.split.batch_size,)))


@dataclass(frozen=True, kw_only=True)
class FeatureGraphs:
    """The graphs of a role with features: see the shape ``split_features``."""

    own: RoleGraphs
    labels: str

    def build(self) -> dict[str, Graph]:
        """All of them by the names of their stages, optimised."""
        own, split = self.own, self.own.split
        rows, measured = own.batch.features(split.batch_size), own.batch.features(split.evaluation_batch)
        traces: dict[str, tuple[Traced, Mapping[str, TensorSpec]]] = {
            "begin": (own.begin, {}),
            "embed": (partial(self._embed, mode=_training(own.role)), rows),
            "descend": (self._descend, rows),
            "represent": (partial(self._embed, mode=modes.EVAL), measured),
        }
        return {name: traced(function, inputs) for name, (function, inputs) in traces.items()}

    def _embed(self, inputs: GraphInputs, *, mode: modes.Mode) -> Outputs:
        return {message(self.labels, EMBEDDING): self._embedding(inputs, self.own.weights(inputs), mode) + 0.0}

    def _embedding(self, inputs: GraphInputs, weights: Arrays, mode: modes.Mode) -> Array:
        """The embedding, shortened where the cut bounds it, so that gradients know of the bound."""
        found, noise = self.own.output(MODEL, inputs, weights, mode), self.own.split.cut.embedding
        if noise is None:
            return found
        square = xp.sum(found * found, axis=1, keepdims=True)
        return found * (noise.clip / xp.sqrt(xp.maximum(square, noise.clip**2)))

    def _descend(self, inputs: GraphInputs) -> Outputs:
        """The gradient of the loss by the weights, by way of that by the embedding, which came back."""
        weights = self.own.weights(inputs)

        def projected(trained: Arrays) -> Array:
            embedding = self._embedding(inputs, trained, _training(self.own.role))
            name = message(self.labels, GRADIENT)
            back = inputs[name] if name in inputs else inputs.request(name, TensorSpec(embedding.shape))
            return xp.sum(embedding * back)

        _, gradient = value_and_grad(projected, before=before_gradients("portable"))(weights)
        return self.own.after_step(inputs, weights, gradient)


@dataclass(frozen=True, kw_only=True)
class LabelGraphs:
    """The graphs of the role with labels: see the shape ``split_labels``.

    widths: of the embeddings of the other roles, by role in their order.
    """

    own: RoleGraphs
    widths: Mapping[str, int]

    def build(self) -> dict[str, Graph]:
        """All of them by the names of their stages, optimised."""
        own, split = self.own, self.own.split
        traces: dict[str, tuple[Traced, Mapping[str, TensorSpec]]] = {
            "begin": (own.begin, {}),
            "fit": (self._fit, own.batch.rows(split.batch_size) | self._embeddings(split.batch_size)),
            "eval": (self._evaluate, own.batch.rows(split.evaluation_batch) | self._embeddings(split.evaluation_batch)),
            "infer": (
                self._infer,
                own.batch.features(split.evaluation_batch) | self._embeddings(split.evaluation_batch),
            ),
        }
        return {name: traced(function, inputs) for name, (function, inputs) in traces.items()}

    def _embeddings(self, rows: int) -> dict[str, TensorSpec]:
        return {message(role, EMBEDDING): TensorSpec((rows, width)) for role, width in self.widths.items()}

    def _predict(self, inputs: GraphInputs, weights: Arrays, others: Mapping[str, Array], mode: modes.Mode) -> Array:
        own = [self.own.output(MODEL, inputs, weights, mode)] if MODEL in self.own.models else []
        joined = xp.concat([*own, *others.values()], axis=1)
        what = "The top of the network"
        top = self.own.models[TOP]
        prediction, _ = researcher.ask(
            what,
            partial(forward, top),
            researcher.NamedArrays("parameter", dict(_of_part(weights, TOP))),
            joined,
            mode,
            takes=f"the embeddings of all roles (float32{list(joined.shape)})",
            hint="Its first layer takes the sum of the widths of all embeddings.",
            code="model_mismatch",
        )
        return researcher.array(what, prediction, code="model_mismatch")

    def _fit(self, inputs: GraphInputs) -> Outputs:
        weights, weight = self.own.weights(inputs), inputs[f"batch/{SAMPLE_WEIGHT}"]
        received = {role: inputs[message(role, EMBEDDING)] for role in self.widths}

        def objective(variables: Arrays) -> tuple[Array, tuple[Array, Array]]:
            own = {name: variables[f"own {name}"] for name in weights}
            others = {role: variables[f"of {role}"] for role in received}
            prediction = self._predict(inputs, own, others, _training(self.own.role))
            losses = self.own.batch.losses(inputs, prediction)
            return weighted_mean(losses, weight), (losses, prediction)

        variables = {f"own {name}": value for name, value in weights.items()}
        variables |= {f"of {role}": value for role, value in received.items()}
        _, (losses, prediction), gradient = loss_gradient(objective, variables)
        sums = self.own.batch.totals(inputs, losses, prediction, weight)
        return (
            self.own.after_step(inputs, weights, {name: gradient[f"own {name}"] for name in weights})
            | {message(role, GRADIENT): gradient[f"of {role}"] for role in received}
            | {f"metric/{name}": value for name, value in sums.items()}
        )

    def _evaluated(self, inputs: GraphInputs) -> Array:
        received = {role: inputs[message(role, EMBEDDING)] for role in self.widths}
        return self._predict(inputs, self.own.weights(inputs), received, modes.EVAL)

    def _evaluate(self, inputs: GraphInputs) -> Outputs:
        prediction = self._evaluated(inputs)
        losses = self.own.batch.losses(inputs, prediction)
        totals = self.own.batch.totals(inputs, losses, prediction, inputs[f"batch/{SAMPLE_WEIGHT}"])
        return {f"metric/{name}": value for name, value in totals.items()}

    def _infer(self, inputs: GraphInputs) -> Outputs:
        return {PREDICTION: self._evaluated(inputs)}


def _of_part(weights: Arrays, part: str) -> Arrays:
    return {name.removeprefix(f"{part}/"): value for name, value in weights.items() if name.startswith(f"{part}/")}


def _training(role: str) -> modes.Mode:
    def refuse(shape: tuple[int, ...]) -> Array:
        raise errors.ExperimentError(
            f"The model of role {role!r} draws random numbers while it trains, which a split network does not do.",
            hint="Leave out nn.Dropout.",
            code="model_mismatch",
        )

    return modes.train(refuse)
