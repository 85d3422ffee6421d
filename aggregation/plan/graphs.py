"""The five graphs of a plan, each as one traced function. `compile` turns them into files and describes them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import floor
from typing import Any, get_args

from coterie import errors
from coterie.aggregation.experiment import Experiment, PerExample
from coterie.aggregation.horizontal.algorithm import Begin, ClientPart, Finish, Step
from coterie.aggregation.plan import researcher
from coterie.aggregation.plan.graph import NEXT, GraphName
from coterie.aggregation.plan.manifest import METRICS, SAMPLE_WEIGHT
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.data.batches import SMALLEST_WEIGHT
from coterie.compute.ir import Graph
from coterie.compute.nn import mode as modes
from coterie.compute.nn.calling import forward
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.module import Module, ParameterSpec, Role
from coterie.compute.optim.optimizer import Optimizer
from coterie.compute.optim.packing import packed
from coterie.compute.passes import optimise
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.protocol.layout import Layout
from coterie.protocol.schema import Label
from coterie.protocol.sections import SectionSpec

Arrays = Mapping[str, Array]
Outputs = dict[str, Array]


class Requested(Mapping[str, Array]):
    """Tensors that become inputs of the graph only when they are read, so that a graph has no input that it ignores."""

    def __init__(self, inputs: GraphInputs, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._inputs, self._prefix, self._shapes = inputs, prefix, shapes

    def __getitem__(self, name: str) -> Array:
        shape = self._shapes[name]
        full = f"{self._prefix}/{name}"
        return self._inputs[full] if full in self._inputs else self._inputs.request(full, TensorSpec(shape))

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


@dataclass(frozen=True, kw_only=True)
class GraphBuilder:
    """What the five functions need to know of an experiment.

    layout: every tensor of a model version. trained: those that the optimizer moves; buffers: the others, running
    statistics that the model itself moves while it trains. zeroed: state that starts as zeros, so begin need not make
    it.
    """

    experiment: Experiment
    model: Module
    loss: PerExample
    optimizer: Optimizer
    client: ClientPart
    specs: Mapping[str, ParameterSpec]
    layout: Layout
    trained: tuple[str, ...]
    buffers: tuple[str, ...]
    frozen: tuple[str, ...]
    hyper: Mapping[str, float]
    optimizer_state: Mapping[str, tuple[int, ...]]
    zeroed: frozenset[str]
    constants: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(experiment: Experiment) -> "GraphBuilder":
        """The builder of an experiment with a model of coterie's. Raises errors.ExperimentError."""
        model, loss, rule = experiment.model, experiment.loss, experiment.optimizer
        if not isinstance(model, Module) or loss is None or rule is None:
            found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            raise errors.ExperimentError(
                f"The model of experiment {experiment.name!r} is {found}, not a module of compute.nn.",
                hint="Write it as an nn.Module and give a value of it, or use ExternalModel and a trainer of your own.",
                code="model_mismatch",
            )
        client = experiment.algorithm.client
        specs = researcher.parameters(model)
        layout = Layout.of({name: spec.shape for name, spec in specs.items() if spec.role != "frozen"})
        named = {role: tuple(name for name, spec in specs.items() if spec.role == role) for role in get_args(Role)}
        trained = named["shared"]
        optimizer = packed(rule)
        state = _traced_state(optimizer, {name: layout.shapes[name] for name in trained})
        return GraphBuilder(
            experiment=experiment,
            model=model,
            loss=loss,
            optimizer=optimizer,
            client=client,
            specs=specs,
            layout=layout,
            trained=trained,
            buffers=named["buffer"],
            frozen=named["frozen"],
            hyper={name: float(value) for name, value in {**optimizer.hyper, **client.hyper}.items()},
            optimizer_state={name: value.type.shape for name, value in state.outputs.items()},
            zeroed=frozenset(f"optimizer/{name}" for name in state.outputs if _is_zero(state, name)),
            constants=_constant_shapes(client, layout),
        )

    def build(self) -> dict[GraphName, Graph]:
        """All five, optimised."""
        batch, infer = self.experiment.batch_size, self.experiment.infer_batch
        weights = {self._place(name): TensorSpec(shape) for name, shape in self.layout.shapes.items()}
        state = weights | {f"optimizer/{name}": TensorSpec(shape) for name, shape in self.optimizer_state.items()}
        constants = {f"round_input/begin/{name}": TensorSpec(shape) for name, shape in self.constants.items()}
        sums = {f"metric/{name}": TensorSpec((1,)) for name in self.experiment.metric_names}
        counters = {f"counter/{name}": TensorSpec((1,)) for name in ("steps", "weight")}
        active = {"hyper/active": TensorSpec((1,))}
        traces: dict[GraphName, tuple[Callable[[GraphInputs], Outputs], dict[str, TensorSpec]]] = {
            "begin": (self._begin, weights),
            "train": (self._train, state | constants | sums | self._rows(batch) | active),
            "finish": (self._finish, weights | constants | sums | counters),
            "eval": (self._evaluate, weights | sums | self._rows(batch)),
            "infer": (self._infer, weights | self._features(infer)),
        }
        return {name: optimise(trace_named(function, inputs)) for name, (function, inputs) in traces.items()}

    # The five functions: named arrays → named arrays.

    def _begin(self, inputs: GraphInputs) -> Outputs:
        params = self._weights(inputs)
        # Adding 0 turns −0 into +0; only then does active = 0 return the state bit for bit.
        outputs = {f"{NEXT}{self._place(name)}": value + 0.0 for name, value in params.items()}
        state = self.optimizer.init({name: params[name] for name in self.trained})
        made = {name: value for name, value in state.items() if f"optimizer/{name}" not in self.zeroed}
        outputs |= {f"{NEXT}optimizer/{name}": value for name, value in made.items()}
        constants = self.client.begin(self._begin_context(inputs, params))
        return outputs | {f"{NEXT}round_input/begin/{name}": value for name, value in constants.items()}

    def _train(self, inputs: GraphInputs) -> Outputs:
        weights = self._weights(inputs)
        params = {name: weights[name] for name in self.trained}
        state = {name: inputs[f"optimizer/{name}"] for name in self.optimizer_state}
        weight, active = inputs[f"batch/{SAMPLE_WEIGHT}"], inputs["hyper/active"]
        hyper = self._hyper(inputs)

        def objective(trained: Arrays) -> tuple[Array, Array, Array, Arrays]:
            prediction, after = self._predict(inputs, {**weights, **trained}, self._training_mode(inputs, weight))
            losses = self._loss(prediction, self._label(inputs))
            total = xp.sum(losses * weight)
            return total / xp.maximum(xp.sum(weight), SMALLEST_WEIGHT), losses, prediction, after

        (_, losses, prediction, after), gradient = value_and_grad(objective, has_aux=True)(params)
        step = Step(
            params=params,
            base=Requested(inputs, "base", self.layout.shapes),
            constants={name: inputs[f"round_input/begin/{name}"] for name in self.constants},
            hyper=hyper,
        )
        gradient = self.client.gradient(gradient, step)
        moved, kept = self.optimizer.step(gradient, state, params, hyper, active, weight=xp.sum(weight))
        # A step that is not active adds 0 times the change of a buffer, so it leaves the buffer as it is.
        moved |= {name: weights[name] + active * (after[name] - weights[name]) for name in self.buffers}
        outputs = {f"{NEXT}{self._place(name)}": moved[name] for name in self.layout.names}
        outputs |= {f"{NEXT}optimizer/{name}": kept[name] for name in self.optimizer_state}
        return outputs | self._sums(inputs, losses, prediction, weight, active)

    def _finish(self, inputs: GraphInputs) -> Outputs:
        base = Requested(inputs, "base", self.layout.shapes)
        finished = self.client.finish(
            Finish(
                base=base,
                end=self._weights(inputs),
                constants={name: inputs[f"round_input/begin/{name}"] for name in self.constants},
                client_state=Requested(inputs, "client_state", self.client.client_state(self.layout)),
                round_inputs=Requested(inputs, "round_input", self.client.round_inputs(self.layout)),
                hyper=self._hyper(inputs),
                steps=inputs["counter/steps"],
                weight=inputs["counter/weight"],
            )
        )
        outputs = {
            f"upload/{spec.name}": self._section(spec, finished.sections) for spec in self.client.sections(self.layout)
        }
        sums = [inputs[f"metric/{name}"] for name in self.experiment.metric_names]
        outputs[f"upload/{METRICS}"] = xp.concat(sums)
        return outputs | {f"{NEXT}client_state/{name}": value for name, value in finished.client_state.items()}

    def _evaluate(self, inputs: GraphInputs) -> Outputs:
        prediction, _ = self._predict(inputs, self._weights(inputs), modes.EVAL)
        losses = self._loss(prediction, self._label(inputs))
        return self._sums(inputs, losses, prediction, inputs[f"batch/{SAMPLE_WEIGHT}"], None)

    def _infer(self, inputs: GraphInputs) -> Outputs:
        return {"output": self._predict(inputs, self._weights(inputs), modes.EVAL)[0]}

    # Parts of them.

    def _place(self, name: str) -> str:
        """The full name of a tensor of the layout."""
        return f"buffer/{name}" if name in self.buffers else f"shared/{name}"

    def _weights(self, inputs: GraphInputs) -> Outputs:
        """Every tensor of the model version."""
        return {name: inputs[self._place(name)] for name in self.layout.names}

    def _begin_context(self, inputs: GraphInputs, base: Arrays) -> Begin:
        return Begin(
            base=base,
            client_state=Requested(inputs, "client_state", self.client.client_state(self.layout)),
            round_inputs=Requested(inputs, "round_input", self.client.round_inputs(self.layout)),
            hyper=self._hyper(inputs),
        )

    def _hyper(self, inputs: GraphInputs) -> Arrays:
        return Requested(inputs, "hyper", dict.fromkeys(self.hyper, (1,)))

    def _training_mode(self, inputs: GraphInputs, weight: Array) -> modes.Mode:
        count = iter(range(1 << 16))
        return modes.train(lambda shape: inputs.request(f"random/{next(count)}", TensorSpec(shape)), weight)

    def _rows(self, rows: int) -> dict[str, TensorSpec]:
        label = self.experiment.schema.label
        return {
            **self._features(rows),
            f"batch/{label.name}": TensorSpec((rows,), label.dtype),
            f"batch/{SAMPLE_WEIGHT}": TensorSpec((rows,)),
        }

    def _features(self, rows: int) -> dict[str, TensorSpec]:
        return {f"batch/{f.name}": TensorSpec((rows, *f.shape), f.dtype) for f in self.experiment.schema.features}

    def _label(self, inputs: GraphInputs) -> Array:
        return inputs[f"batch/{self.experiment.schema.label.name}"]

    def _predict(self, inputs: GraphInputs, weights: Arrays, mode: modes.Mode) -> tuple[Array, Arrays]:
        """The model's output for the batch, normalised as the schema says, and its buffers after it."""
        features = {f.name: inputs[f"batch/{f.name}"] for f in self.experiment.schema.features}
        frozen = Requested(inputs, "frozen", {name: self.specs[name].shape for name in self.frozen})
        x = {f.name: _normalised(features[f.name], f) for f in self.experiment.schema.features}
        taken = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in x.items())
        prediction, buffers = researcher.ask(
            "The model",
            partial(forward, self.model),
            researcher.Named("parameter", {**weights, **{name: frozen[name] for name in frozen}}),
            researcher.Named("feature", x) if len(x) > 1 else next(iter(x.values())),
            mode,
            given=f"the schema's features ({taken})",
            hint="Make the schema's shapes and dtypes those of the model's first layer.",
            code="model_mismatch",
        )
        return researcher.array("The model", prediction, code="model_mismatch"), buffers

    def _loss(self, prediction: Array, label: Array) -> Array:
        highest = _highest_class(self.experiment.schema.label)
        if self.loss is softmax_cross_entropy and prediction.ndim == 2 and highest >= prediction.shape[1]:
            # A label without a logit would train without a word, on the wrong loss.
            raise errors.ExperimentError(
                f"The schema's label goes up to class {highest}, but the model gives {prediction.shape[1]} logits: "
                f"class 0 to {prediction.shape[1] - 1}.",
                hint=f"Let the last layer have {highest + 1} outputs, or correct the label's classes or range.",
                code="loss_mismatch",
            )
        return self._per_example("loss", self.loss, prediction, label)

    def _per_example(self, name: str, function: PerExample, prediction: Array, label: Array) -> Array:
        """One float32 value per example, or a refusal that names what came instead."""
        kind = "loss" if name == "loss" else "metric"
        given = f"prediction {prediction.dtype}{list(prediction.shape)} and label {label.dtype}{list(label.shape)}"
        what = f"The {kind} {name!r}"
        result = researcher.ask(what, function, prediction, label, given=given, code=f"{kind}_mismatch")
        values = researcher.array(what, result, code=f"{kind}_shape")
        if values.shape != label.shape[:1]:
            raise errors.ExperimentError(
                f"{what} must return one value per example, [{label.shape[0]}]; it returned "
                f"{list(values.shape)} for {given}.",
                hint="Leave out the mean over the batch: coterie weighs and averages." if not values.shape else None,
                code=f"{kind}_shape",
            )
        if values.dtype.name != "float32":
            raise errors.ExperimentError(
                f"{what} must return float32; it returned {values.dtype}.",
                hint='Convert it with astype(x, "float32"); random numbers of NumPy are float64 unless told otherwise.',
                code=f"{kind}_dtype",
            )
        return values

    def _sums(
        self, inputs: GraphInputs, losses: Array, prediction: Array, weight: Array, active: Array | None
    ) -> Outputs:
        """The metric sums after this batch."""
        label = self._label(inputs)
        values = {"loss": losses} | {
            name: self._per_example(name, function, prediction, label)
            for name, function in self.experiment.metrics.items()
        }
        totals = {"examples": xp.sum(weight)} | {name: xp.sum(value * weight) for name, value in values.items()}
        if active is None:
            added = {name: xp.reshape(total, (1,)) for name, total in totals.items()}
        else:
            added = {name: active * total for name, total in totals.items()}
        return {f"{NEXT}metric/{name}": inputs[f"metric/{name}"] + value for name, value in added.items()}

    def _section(self, spec: SectionSpec, sections: Mapping[str, Array | Arrays]) -> Array:
        """A section as one flat vector."""
        value = sections.get(spec.name)
        if isinstance(value, Mapping):
            ordered = [value[name] for name in self.layout.names if name in value]
            value = xp.concat([xp.reshape(tensor, (tensor.size,)) for tensor in ordered]) if ordered else None
        if value is None or value.shape != (spec.length,):
            found = "nothing" if value is None else str(list(value.shape))
            raise errors.ExperimentError(
                f"Algorithm {self.experiment.algorithm.name!r} must finish with section {spec.name!r} of "
                f"[{spec.length}]; it gave {found}.",
                code="algorithm_sections",
            )
        return value


def _normalised(x: Array, feature: Any) -> Array:
    """(x - offset) * scale in float32. An int32 feature without normalisation stays as it is: it holds ids."""
    if not feature.is_normalised:
        return xp.astype(x, xp.float32) if feature.dtype == "uint8" else x
    offset, scale = feature.normalisation()
    values = x if feature.dtype == "float32" else xp.astype(x, xp.float32)
    values = values - offset if offset.any() else values
    return values * scale if (scale != 1).any() else values


def _highest_class(label: Label) -> int:
    """The greatest class index that the schema lets pass; -1 where it sets no bound."""
    if label.classes is not None:
        return len(label.classes) - 1
    return -1 if label.high is None or label.dtype != "int32" else floor(label.high)


def _traced_state(optimizer: Optimizer, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    specs = {name: TensorSpec(shape) for name, shape in shapes.items()}
    return optimise(trace_named(lambda inputs: optimizer.init(dict(inputs)), specs))


def _is_zero(graph: Graph, name: str) -> bool:
    """Whether an output is known to be zeros: a constant, or one spread over a shape."""
    node = graph.producers().get(graph.outputs[name])
    if node is not None and node.primitive == "broadcast_to":
        node = graph.producers().get(node.inputs[0])
    return node is not None and node.primitive == "constant" and not node.attributes["value"].any()


def _constant_shapes(client: ClientPart, layout: Layout) -> Mapping[str, tuple[int, ...]]:
    """Shapes of what the method's ``begin`` returns."""
    shapes = {tensor.name: tensor.shape for tensor in layout.tensors}

    def begin(inputs: GraphInputs) -> Outputs:
        context = Begin(
            base=Requested(inputs, "shared", shapes),
            client_state=Requested(inputs, "client_state", client.client_state(layout)),
            round_inputs=Requested(inputs, "round_input", client.round_inputs(layout)),
            hyper=Requested(inputs, "hyper", dict.fromkeys(client.hyper, (1,))),
        )
        return dict(client.begin(context))

    graph = trace_named(begin, {})
    return {name: value.type.shape for name, value in graph.outputs.items()}
