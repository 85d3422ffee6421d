"""The graphs of a plan, each as one traced function. `compile` turns them into files and describes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from coterie import errors
from coterie.aggregation.compiling import researcher
from coterie.aggregation.compiling.calls import Arrays, BatchCalls, ModelCalls, Outputs, Requested
from coterie.aggregation.compiling.context import ObjectiveContext
from coterie.aggregation.compiling.describe import ACTIVE, NEXT, NOISE
from coterie.aggregation.compiling.flat_section import flat_section
from coterie.aggregation.compiling.one_row import OneRow
from coterie.aggregation.compiling.starting import (
    begin_context,
    constant_shapes,
    deployment_context,
    evaluation_context,
    is_zero,
    probed_names,
    traced_state,
)
from coterie.aggregation.compiling.subset import narrowed, uploaded_names
from coterie.aggregation.compiling.training import training_of
from coterie.aggregation.compiling.unread import traced
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.algorithm import Begin, ClientPart, Finish, Objective, Probe, Shapes, Step
from coterie.aggregation.plan.manifest import DELTA, METRICS, SAMPLE_WEIGHT, Training
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.aggregation.plan.stage import PREDICTION
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.clipping.transform import clipped_grad, noised_mean
from coterie.compute.ir import Graph
from coterie.compute.nn import mode as modes
from coterie.compute.nn.module import Module, ParameterSpec, Role
from coterie.compute.onnx.importer.frameworks import export_hint
from coterie.compute.optim.optimizer import Optimizer
from coterie.compute.optim.packing import packed
from coterie.compute.step.buffers import buffers_after
from coterie.compute.step.draws import drawing_mode
from coterie.compute.step.gradient import loss_gradient, weighted_mean
from coterie.compute.step.precision import loss_scale, measured
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec


@dataclass(frozen=True, kw_only=True)
class GraphBuilder:
    """What the functions need to know of an experiment.

    shapes: the model's tensors, and those of them that the optimizer moves.
    buffers: the others, running statistics that the model itself moves while it trains.
    layout: every tensor of a model version.
    zeroed: state that starts as zeros, so begin need not make it.
    constants: shapes of what the method's ``begin`` returns.
    """

    experiment: Experiment
    training: Training
    batch: BatchCalls
    calls: ModelCalls
    optimizer: Optimizer
    client: ClientPart
    specs: Mapping[str, ParameterSpec]
    shapes: Shapes
    layout: Layout
    sections: tuple[SectionSpec, ...]
    buffers: tuple[str, ...]
    frozen: tuple[str, ...]
    hyper: Mapping[str, float]
    optimizer_state: Mapping[str, tuple[int, ...]]
    zeroed: frozenset[str]
    constants: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(experiment: Experiment) -> "GraphBuilder":
        """The builder of an experiment with a model of coterie's. Raises errors.ExperimentError."""
        model, loss, rule = experiment.model, experiment.loss, experiment.local_optimizer
        if not isinstance(model, Module) or loss is None or isinstance(loss, Mapping) or rule is None:
            found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            raise errors.ExperimentError(
                f"The model of experiment {experiment.name!r} is {found}, not a module of compute.nn.",
                hint=export_hint(model) or "Give an nn.Module, onnx.load(...), or ExternalModel and a trainer.",
                code="model_mismatch",
            )
        client = experiment.algorithm.client
        specs = researcher.parameters(model)
        named = {role: tuple(name for name, spec in specs.items() if spec.role == role) for role in get_args(Role)}
        shapes = Shapes(
            tensors={name: spec.shape for name, spec in specs.items() if spec.role != "frozen"},
            trained={name: specs[name].shape for name in uploaded_names(experiment, named["shared"])},
        )
        optimizer = packed(client.optimizer(rule))
        state = traced_state(optimizer, shapes.trained)
        layout = Layout.of(client.version(shapes))
        hyper = {name: float(value) for name, value in {**optimizer.hyper, **client.hyper}.items()}
        training = training_of(experiment)
        batch = BatchCalls(schema=experiment.schema, loss=loss, metrics=experiment.metrics)
        return GraphBuilder(
            experiment=experiment,
            training=training,
            batch=batch,
            calls=ModelCalls(batch=batch, model=model, algorithm=experiment.algorithm.name),
            optimizer=optimizer,
            client=client,
            specs=specs,
            shapes=shapes,
            layout=layout,
            sections=narrowed(experiment, client.sections(shapes, layout), layout, shapes.tensors),
            buffers=named["buffer"],
            frozen=named["frozen"],
            hyper=hyper,
            optimizer_state={name: value.type.shape for name, value in state.outputs.items()},
            zeroed=frozenset(f"optimizer/{name}" for name in state.outputs if is_zero(state, name)),
            constants=constant_shapes(client, shapes, layout, hyper),
        )

    def build(self, *only: str) -> dict[str, Graph]:
        """All, or these, by the names of their stages, optimised. A method without a probe has no probe graph."""
        infer = self.experiment.infer_batch
        rows = self.batch.rows(self.training.batch_size)
        measured = self.batch.rows(self.experiment.evaluation_batch or self.training.batch_size)
        weights = {self._full_name(name): TensorSpec(shape) for name, shape in self.shapes.tensors.items()}
        # What of a version the graphs other than train and finish read in any case; the rest they ask for.
        version = {self._full_name(name): TensorSpec(self.layout.shapes[name]) for name in self._version_tensors}
        state = weights | {f"optimizer/{name}": TensorSpec(shape) for name, shape in self.optimizer_state.items()}
        constants = {f"round_input/begin/{name}": TensorSpec(shape) for name, shape in self.constants.items()}
        sums = {f"metric/{name}": TensorSpec((1,)) for name in self.experiment.metric_names}
        counters = {f"counter/{name}": TensorSpec((1,)) for name in ("steps", "weight")}
        active = {ACTIVE: TensorSpec((1,))}
        traces: dict[str, tuple[Callable[[GraphInputs], Outputs], dict[str, TensorSpec]]] = {
            "probe": (self._probe, rows),
            "begin": (self._begin, version),
            "train": (self._train, state | constants | sums | rows | active),
            "finish": (self._finish, weights | constants | sums | counters),
            "eval": (self._evaluate, version | measured),
            "infer": (self._infer, version | self.batch.features(infer)),
        }
        if not self.client.probe:
            del traces["probe"]
        return {
            name: traced(function, inputs) for name, (function, inputs) in traces.items() if not only or name in only
        }

    # The functions: named arrays → named arrays.

    def _probe(self, inputs: GraphInputs) -> Outputs:
        weight = inputs[f"batch/{SAMPLE_WEIGHT}"]

        def loss(params: Arrays) -> Array:
            return self.batch.losses(inputs, self.calls.predict(inputs, self._model(params), modes.EVAL)[0])

        context = Probe(version=self._version(inputs), loss=loss, label=self.batch.label(inputs))
        values = {name: xp.sum(value(context) * weight) for name, value in self.client.probe.items()}
        values["examples"] = xp.sum(weight)
        return {f"probe/{name}": xp.reshape(value, (1,)) for name, value in values.items()}

    def _begin(self, inputs: GraphInputs) -> Outputs:
        context = self._start_context(inputs)
        params = self._model(self.client.start(context))
        # Adding 0 turns −0 into +0; only then does active = 0 return the state bit for bit.
        outputs = {f"{NEXT}{self._full_name(name)}": value + 0.0 for name, value in params.items()}
        state = self.optimizer.init({name: params[name] for name in self.shapes.trained})
        made = {name: value for name, value in state.items() if f"optimizer/{name}" not in self.zeroed}
        outputs |= {f"{NEXT}optimizer/{name}": value for name, value in made.items()}
        constants = self.client.begin(context)
        return outputs | {f"{NEXT}round_input/begin/{name}": value for name, value in constants.items()}

    def _train(self, inputs: GraphInputs) -> Outputs:
        weights = self._weights(inputs)
        params = {name: weights[name] for name in self.shapes.trained}
        state = {name: inputs[f"optimizer/{name}"] for name in self.optimizer_state}
        weight, active = inputs[f"batch/{SAMPLE_WEIGHT}"], inputs[ACTIVE]
        hyper, base = self._hyper(inputs), Requested(inputs, "base", self.layout.shapes)
        constants = {name: inputs[f"round_input/begin/{name}"] for name in self.constants}

        context = partial(Objective, base=base, constants=constants, hyper=hyper)
        after: Arrays = {}
        if self.training.private is None:
            gradient, after, sums = self._gradient(inputs, weights, params, context, state)
            count = xp.sum(weight)
        else:
            gradient = self._private_gradient(inputs, weights, params, context, self.training.private)
            # How many rows a batch holds is private, and so is what they are like.
            sums = {f"{NEXT}metric/{name}": inputs[f"metric/{name}"] + 0.0 for name in self.experiment.metric_names}
            count = xp.full((1,), float(self.training.private.expected))

        def gradient_at(at: Arrays) -> Arrays:
            if self.training.private is not None:
                raise errors.ExperimentError(
                    f"Algorithm {self.experiment.algorithm.name!r} takes a gradient at other weights, which "
                    "ExampleLevel privacy neither clips nor noises.",
                    hint="Choose another method, or another kind of privacy.",
                    code="experiment_combination",
                )
            return self._gradient(inputs, weights, {name: at[name] for name in params}, context, state)[0]

        step = Step(params=params, base=base, constants=constants, hyper=hyper, gradient_at=gradient_at)
        gradient = self.client.gradient(gradient, step)
        moved, kept = self.optimizer.step(gradient, state, params, hyper, active, weight=count)
        moved |= buffers_after(active, after, {name: weights[name] for name in self.buffers}, None)
        # What an experiment does not train stays as the version has it.
        outputs = {f"{NEXT}{self._full_name(name)}": moved.get(name, weights[name]) for name in self.shapes.tensors}
        outputs |= {f"{NEXT}optimizer/{name}": kept[name] for name in self.optimizer_state}
        return outputs | sums

    def _gradient(
        self, inputs: GraphInputs, weights: Arrays, params: Arrays, context: ObjectiveContext, state: Arrays
    ) -> tuple[Arrays, Arrays, Outputs]:
        """Of the batch: the mean gradient, the buffers after it, and the metric sums.

        state: the optimizer's, which has the loss scale of float16.
        """
        weight, active = inputs[f"batch/{SAMPLE_WEIGHT}"], inputs[ACTIVE]

        def objective(trained: Arrays) -> tuple[Array, tuple[Array, Array, Arrays]]:
            mode = drawing_mode(inputs, weight, recompute=self.experiment.recompute)
            losses, prediction, after, minimised = self._objective(
                inputs, {**weights, **trained}, trained, context, mode
            )
            return weighted_mean(minimised, weight), (losses, prediction, after)

        _, (losses, prediction, after), gradient = loss_gradient(objective, params, scale=loss_scale(state))
        totals = measured(self.batch.totals(inputs, losses, prediction, weight), gradient, state)
        sums = {f"{NEXT}metric/{name}": inputs[f"metric/{name}"] + active * value for name, value in totals.items()}
        return gradient, after, sums

    def _private_gradient(
        self, inputs: GraphInputs, weights: Arrays, params: Arrays, context: ObjectiveContext, private: PrivateSteps
    ) -> Arrays:
        """The sum of the rows' clipped gradients with the host's noise, over the expected number of rows: DP-SGD (Abadi
        et al., arXiv:1607.00133). A row whose gradient is not finite counts as one whose gradient is zero.
        """
        size = self.training.batch_size
        rows = {name: inputs[name] for name in self.batch.rows(size) if name != f"batch/{SAMPLE_WEIGHT}"}
        shapes = self._drawn_shapes(weights)
        # Each row's own: [B, …].
        random = [inputs.request(f"random/{number}", TensorSpec((size, *shape))) for number, shape in enumerate(shapes)]

        def losses(trained: Arrays, row: Arrays, own: list[Array]) -> Array:
            numbers = iter(own)
            mode = modes.train(lambda shape: xp.reshape(next(numbers), shape))
            return self._objective(OneRow(inputs, row), {**weights, **trained}, trained, context, mode)[3]

        clipped = clipped_grad(losses, private.clip, nonfinite="zero")
        total = clipped(params, rows, random, sample_weight=inputs[f"batch/{SAMPLE_WEIGHT}"]).gradient
        noise = {name: inputs.request(f"{NOISE}{name}", TensorSpec(params[name].shape, "int32")) for name in params}
        try:
            drawn = private.noise(batch=size, length=sum(value.size for value in params.values()))
        except errors.ArgumentValueError as error:
            raise errors.ExperimentError(
                f"ExampleLevel: {error.message}", hint=error.hint, code="privacy_invalid"
            ) from error
        return noised_mean(total, noise, grid=drawn.grid, count=float(private.expected))

    def _objective(
        self, inputs: GraphInputs, weights: Arrays, trained: Arrays, context: ObjectiveContext, mode: modes.Mode
    ) -> tuple[Array, Array, Arrays, Array]:
        """Of these rows: losses, predictions, buffers after them, and what the method minimises, ``[B]``."""
        # Every pass of a step is in the experiment's precision, those at other weights too; probe, evaluation and
        # inference are float32.
        calls = replace(self.calls, precision=self.experiment.precision)

        def represent(changed: Arrays) -> Array:
            return calls.represent(inputs, {**weights, **changed})

        terms: list[Array] = []
        prediction, after = calls.predict(inputs, weights, replace(mode, penalise=terms.append))
        losses = self.batch.losses(inputs, prediction)

        def predict(changed: Arrays) -> Array:
            return calls.predict(inputs, {**weights, **changed}, modes.EVAL)[0]

        own = context(
            params=trained,
            represent=represent,
            prediction=prediction,
            label=self.batch.label(inputs),
            weight=self.batch.weight(inputs),
            predict=predict,
            loss=partial(self.batch.losses, inputs),
        )
        return losses, prediction, after, self.client.objective(sum(terms, losses), own)

    def _drawn_shapes(self, weights: Arrays) -> list[tuple[int, ...]]:
        """Shapes of the random numbers that the model asks for when it is called on one row."""
        shapes: list[tuple[int, ...]] = []

        def call(inputs: GraphInputs) -> Outputs:
            def uniform(shape: tuple[int, ...]) -> Array:
                shapes.append(shape)
                return inputs.request(f"random/{len(shapes)}", TensorSpec(shape))

            own = {name: inputs[self._full_name(name)] for name in weights}
            return {"prediction": self.calls.predict(inputs, own, modes.train(uniform))[0]}

        trace_named(call, self.batch.rows(1) | {self._full_name(n): TensorSpec(w.shape) for n, w in weights.items()})
        return shapes

    def _finish(self, inputs: GraphInputs) -> Outputs:
        base, end = Requested(inputs, "base", self.layout.shapes), self._weights(inputs)
        finished = self.client.finish(
            Finish(
                base=base,
                end=end,
                trained=tuple(self.shapes.trained),
                optimizer=Requested(inputs, "optimizer", self.optimizer_state),
                constants={name: inputs[f"round_input/begin/{name}"] for name in self.constants},
                client_state=Requested(inputs, "client_state", self.client.client_state(self.shapes)),
                probe=Requested(inputs, "probe", dict.fromkeys(probed_names(self.client), (1,))),
                hyper=self._hyper(inputs),
                steps=inputs["counter/steps"],
                weight=inputs["counter/weight"],
            )
        )
        sections = dict(finished.sections)
        change = sections.get(DELTA)
        if isinstance(change, Mapping) and self.buffers:
            # Whatever a method makes of the weights' changes, running statistics move by their own.
            sections[DELTA] = {**change, **{name: end[name] - base[name] for name in self.buffers}}
        outputs = {
            f"upload/{spec.name}": flat_section(self.experiment.algorithm.name, self.layout, spec, sections)
            for spec in self.sections
        }
        sums = [inputs[f"metric/{name}"] for name in self.experiment.metric_names]
        outputs[f"upload/{METRICS}"] = xp.concat(sums)
        return outputs | {f"{NEXT}client_state/{name}": value for name, value in finished.client_state.items()}

    def _evaluate(self, inputs: GraphInputs) -> Outputs:
        context = evaluation_context(inputs, self.client, self.shapes, self._version(inputs))
        weights = self._model(self.client.evaluated(context))
        prediction, _ = self.calls.predict(inputs, weights, modes.EVAL)
        losses = self.batch.losses(inputs, prediction)
        totals = self.batch.totals(inputs, losses, prediction, inputs[f"batch/{SAMPLE_WEIGHT}"])
        return {f"metric/{name}": value for name, value in totals.items()}

    def _infer(self, inputs: GraphInputs) -> Outputs:
        context = deployment_context(inputs, self.client, self.shapes, self._version(inputs))
        models = self.client.deployed(context)
        outputs = [self.calls.predict(inputs, self._model(weights), modes.EVAL)[0] for weights in models]
        return {PREDICTION: outputs[0] if len(outputs) == 1 else xp.stack(outputs)}

    # Parts of them.

    @property
    def _version_tensors(self) -> tuple[str, ...]:
        """The model's tensors that a version holds under their own names: all of them or none."""
        return tuple(name for name in self.shapes.tensors if name in self.layout.shapes)

    def _full_name(self, name: str) -> str:
        """The full name of a tensor of the model."""
        return f"buffer/{name}" if name in self.buffers else f"shared/{name}"

    def _weights(self, inputs: GraphInputs) -> Outputs:
        """Every tensor of the model as it is trained."""
        return {name: inputs[self._full_name(name)] for name in self.shapes.tensors}

    def _version(self, inputs: GraphInputs) -> Arrays:
        """Every tensor of the version, the model's own by their roles."""
        return Requested(inputs, "base", self.layout.shapes, {n: self._full_name(n) for n in self._version_tensors})

    def _model(self, arrays: Arrays) -> Outputs:
        """The model's tensors among others. Raises errors.ExperimentError naming one that a method leaves out."""
        absent = [name for name in self.shapes.tensors if name not in arrays]
        if absent:
            raise errors.ExperimentError(
                f"Algorithm {self.experiment.algorithm.name!r} gives a model without {absent[0]!r}.",
                hint="Its `start`, `evaluated` and `deployed` must return every tensor of the model.",
                code="algorithm_sections",
            )
        return {name: arrays[name] for name in self.shapes.tensors}

    def _start_context(self, inputs: GraphInputs) -> Begin:
        return begin_context(inputs, self.client, self.shapes, self._version(inputs), self._hyper(inputs))

    def _hyper(self, inputs: GraphInputs) -> Arrays:
        return Requested(inputs, "hyper", dict.fromkeys(self.hyper, (1,)))
