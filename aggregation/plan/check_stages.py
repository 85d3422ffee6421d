"""Whether the stages of a plan are those of its shape, and lead from one to the next.

Everything here is read from `SHAPES` and the three tables below; no stage is known by its name.
"""

from collections.abc import Callable, Collection, Mapping

from coterie.aggregation.plan.scope import StageScope
from coterie.aggregation.plan.shapes import SHAPES, StageRule
from coterie.aggregation.plan.stage import (
    PREDICTION,
    SAMPLE_WEIGHT,
    TASKS,
    Destination,
    Role,
    Source,
    Stage,
    StageInput,
    StageOutput,
    TaskName,
)
from coterie.errors import PlanRefused
from coterie.protocol.layout import Layout, Tensor

TensorType = tuple[str, tuple[int, ...]]
"""dtype and shape."""

# The roles that the inputs from each source may have.
SOURCE_ROLES: Mapping[Source, frozenset[Role]] = {
    "model": frozenset({"shared", "buffer", "round_input"}),
    "frozen": frozenset({"frozen"}),
    "client_state": frozenset({"client_state"}),
    "probe": frozenset({"probe"}),
    "hyper": frozenset({"hyper"}),
    "active": frozenset({"hyper"}),
    "random": frozenset({"random"}),
    "noise": frozenset({"random"}),
    "batch": frozenset({"batch"}),
    "state": frozenset({"shared", "buffer", "optimizer", "round_input", "client_state", "metric"}),
    "zeros": frozenset({"metric", "optimizer"}),
    "counter": frozenset({"counter"}),
    "message": frozenset({"message"}),
}


def check_stages(scope: StageScope) -> None:
    """Raise errors.PlanRefused (``plan_stages``, ``plan_wiring``) unless the stages are those of the shape, each input
    can be filled and each output put where the manifest says, and every task yields what it must.
    """
    rules = SHAPES[scope.shape]
    _check_presence(scope, rules)
    for rule in rules:
        stage = scope.find(rule.name)
        if stage is not None:
            _check_frame(scope, rule, stage)
            _check_inputs(scope, rule, stage)
            _check_outputs(scope, rule, stage)
    _check_kinds(scope)
    for task in TASKS:
        _check_flow(scope, task)


def _check_presence(scope: StageScope, rules: tuple[StageRule, ...]) -> None:
    found = [stage.name for stage in scope.stages]
    unknown = sorted(set(found) - {rule.name for rule in rules})
    if unknown:
        raise _shape_refusal(f"A plan of the shape {scope.shape!r} has no stage {unknown[0]!r}.")
    missing = [rule.name for rule in rules if rule.needed == "always" and rule.name not in found]
    if missing:
        raise _shape_refusal(f"A plan of the shape {scope.shape!r} needs the stage {missing[0]!r}.")
    if found != [rule.name for rule in rules if rule.name in found]:
        order = ", ".join(rule.name for rule in rules)
        raise _shape_refusal(f"The stages of the shape {scope.shape!r} must appear once each, in the order {order}.")


def _check_frame(scope: StageScope, rule: StageRule, stage: Stage) -> None:
    name = stage.name
    if (stage.over, stage.tasks) != (rule.over, rule.tasks):
        raise _shape_refusal(
            f"Stage {name!r} runs over {stage.over!r} in {', '.join(stage.tasks) or 'no task'}; in the shape "
            f"{scope.shape!r} it runs over {rule.over!r} in {', '.join(rule.tasks)}."
        )
    if (stage.over == "once") != (stage.batch == 0):
        raise _shape_refusal(f"Stage {name!r} runs over {stage.over!r}, which cannot take {stage.batch} rows in a run.")
    if stage.variants and not rule.varied:
        raise _shape_refusal(f"Stage {name!r} cannot have variants.")
    kinds = [variant.kind for variant in stage.variants]
    if len(set(kinds)) != len(kinds):
        raise _shape_refusal(f"Stage {name!r} has two variants for one class of providers.")
    _check_lengths(rule, stage)
    if stage.over == "steps" and stage.batch != scope.batch_size:
        raise _shape_refusal(f"Stage {name!r} takes {stage.batch} rows in a step, but batches hold {scope.batch_size}.")


def _check_lengths(rule: StageRule, stage: Stage) -> None:
    """Lengths are of what a batch holds, shorter than the stage's own, and ascend."""
    if stage.lengths and (not rule.varied or stage.variants):
        raise _shape_refusal(f"Stage {stage.name!r} cannot have lengths, or not beside its variants.")
    longest = {t.key: t.shape[1] for t in stage.from_source("batch") if len(t.shape) > 1}
    before = {name: 0 for each in stage.lengths[:1] for name in each.lengths}
    for each in stage.lengths:
        fits = before.keys() == each.lengths.keys() and before.keys() <= longest.keys()
        if not fits or not all(before[name] < n < longest[name] for name, n in each.lengths.items()):
            raise _shape_refusal(f"The lengths of stage {stage.name!r} must ascend, below those of its inputs.")
        before = dict(each.lengths)


def _check_inputs(scope: StageScope, rule: StageRule, stage: Stage) -> None:
    name = stage.name
    _check_names(name, [tensor.name for tensor in stage.inputs])
    for tensor in stage.inputs:
        where = f"Input {tensor.name!r} of {name}"
        if tensor.source not in rule.sources:
            raise _refused(f"{where} comes from {tensor.source!r}, which {name} does not have.")
        if tensor.role not in SOURCE_ROLES[tensor.source]:
            raise _refused(f"{where} cannot have the role {tensor.role!r} with source {tensor.source!r}.")
        _check_partner(where, tensor.partner, is_message=tensor.source == "message")
        expected = _SUPPLIED[tensor.source](scope, stage, tensor)
        if expected is None:
            raise _refused(f"{where}: {tensor.source} has nothing named {tensor.key!r}.")
        if (tensor.dtype, tensor.shape) != expected:
            raise _refused(f"{where} is {_text(tensor)}, but {tensor.source} {tensor.key!r} is {_type(expected)}.")
    absent = sorted(rule.reads - {(tensor.source, tensor.key) for tensor in stage.inputs})
    if absent:
        raise _refused(f"{name} must read {absent[0][1]!r} from {absent[0][0]!r}.")
    sums = sorted(tensor.key for tensor in stage.inputs if tensor.role == "metric")
    if rule.sums_metrics and sums != sorted(scope.metrics):
        raise _refused(f"The metric sums of {name} are not the plan's metrics.")


def _check_outputs(scope: StageScope, rule: StageRule, stage: Stage) -> None:
    name = stage.name
    _check_names(name, [tensor.name for tensor in stage.outputs])
    taken: set[tuple[Destination, str]] = set()
    for tensor in stage.outputs:
        where = f"Output {tensor.name!r} of {name}"
        if tensor.destination not in rule.destinations:
            raise _refused(f"{where} goes to {tensor.destination!r}, which {name} does not have.")
        _check_partner(where, tensor.partner, is_message=tensor.destination == "message")
        if (tensor.destination, tensor.address) in taken:
            raise _refused(f"{where} goes to {tensor.destination} {tensor.address!r}, as another output does.")
        taken.add((tensor.destination, tensor.address))
        expected = _TAKEN[tensor.destination](scope, stage, tensor)
        if expected is None:
            raise _refused(f"{where}: {tensor.destination} takes nothing named {tensor.key!r}.")
        if (tensor.dtype, tensor.shape) != expected:
            raise _refused(f"{where} is {_text(tensor)}, but {tensor.destination} {tensor.key!r} is {_type(expected)}.")
    for destination in sorted(rule.fills):
        unfilled = [key for key in _WHOLE[destination](scope) if (destination, key) not in taken]
        if unfilled:
            raise _refused(f"{name} yields no {destination} {unfilled[0]!r}.")
    unmoved = [t.name for t in stage.from_source("zeros") if ("carry", t.name) not in taken]
    if unmoved:
        raise _refused(f"Input {unmoved[0]!r} of {name} starts as zeros but is never given a new value.")


def _check_partner(where: str, partner: str | None, *, is_message: bool) -> None:
    if is_message != (partner is not None):
        raise _refused(f"{where} names a partner if it is a message, and only then.")


def _check_flow(scope: StageScope, task: TaskName) -> None:
    """What a stage takes from earlier stages is there and fits, and what it leaves for later ones is taken."""
    state: dict[str, TensorType] = {}
    probed: dict[str, TensorType] = {}
    roles: dict[str, Role] = {}
    untaken: dict[str, str] = {}
    for stage in (stage for stage in scope.stages if task in stage.tasks):
        for tensor in stage.inputs:
            if tensor.source in ("state", "zeros") and roles.setdefault(tensor.name, tensor.role) != tensor.role:
                before = roles[tensor.name]
                raise _refused(
                    f"Input {tensor.name!r} of {stage.name} cannot have the role {tensor.role!r}: before it, "
                    f"that state has the role {before!r}."
                )
            if tensor.source not in ("state", "probe"):
                continue
            left, key = (state, tensor.name) if tensor.source == "state" else (probed, tensor.key)
            where = f"Input {tensor.name!r} of {stage.name}"
            if key not in left:
                raise _refused(f"{where}: no stage before it leaves the {tensor.source} {key!r}.")
            if left[key] != (tensor.dtype, tensor.shape):
                raise _refused(f"{where} is {_text(tensor)}, but the {tensor.source} before it is {_type(left[key])}.")
            if tensor.source == "state":
                untaken.pop(key, None)
        # Not every task of a probe reads every sum; state is of one task, so all of it must be taken.
        probed |= {t.key: (t.dtype, t.shape) for t in stage.to_destination("probe")}
        state |= {t.key: (t.dtype, t.shape) for t in stage.to_destination("state")}
        untaken |= {t.key: stage.name for t in stage.to_destination("state")}
        carried = set(stage.carry.values())
        state |= {t.name: (t.dtype, t.shape) for t in stage.inputs if t.name in carried}
    for key, name in untaken.items():
        raise _refused(f"{name} leaves the state {key!r}, which no later stage takes.")


def _check_kinds(scope: StageScope) -> None:
    """A tensor of the layout is a weight or a buffer, in all stages alike: the server treats the two differently."""
    kinds: dict[str, Role] = {}
    for stage in scope.stages:
        for tensor in stage.inputs:
            if tensor.role in ("shared", "buffer") and kinds.setdefault(tensor.key, tensor.role) != tensor.role:
                raise _refused(f"Tensor {tensor.key!r} is both a weight and a buffer (in {stage.name}).")
    # Weights may be trained under names that no version has, as when a version holds several models.
    known = () if scope.layout is None else scope.layout.names
    unknown = sorted(key for key, role in kinds.items() if role == "buffer" and key not in known)
    if unknown:
        raise _refused(f"Tensor {unknown[0]!r} is a buffer, but not in the layout.")


def _check_names(stage: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise _refused(f"Stage {stage!r} names a tensor twice.")


# What an input from each source, or an output to each destination, must be: None where there is nothing of that key.


def _in_layout(layout: Layout | None, key: str) -> TensorType | None:
    return ("float32", layout.shapes[key]) if layout and key in layout.shapes else None


def _type_of_tensor(tensors: Collection[Tensor], key: str) -> TensorType | None:
    return next((("float32", tensor.shape) for tensor in tensors if tensor.name == key), None)


def _type_of_column(scope: StageScope, stage: Stage, tensor: StageInput) -> TensorType | None:
    if tensor.key == SAMPLE_WEIGHT:
        return "float32", (stage.batch,)
    if tensor.key == scope.schema.label.name:
        return scope.schema.label.dtype, (stage.batch, *scope.schema.label.shape)
    feature = next((f for f in scope.schema.features if f.name == tensor.key), None)
    return None if feature is None else (feature.dtype, (stage.batch, *feature.shape))


def _type_of_noise(scope: StageScope, stage: Stage, tensor: StageInput) -> TensorType | None:
    """Whole numbers, one for each of a weight that the step moves."""
    moved = (t for t in stage.inputs if t.role == "shared" and t.key == tensor.key)
    return next((("int32", t.shape) for t in moved), None)


def _type_of_message(scope: StageScope, stage: Stage, tensor: StageInput | StageOutput) -> TensorType | None:
    """A row of numbers for each row of the batch; whether both roles say the same is checked between the parts."""
    fits = tensor.partner in scope.partners and tensor.dtype == "float32" and tensor.shape[:1] == (stage.batch,)
    return (tensor.dtype, tensor.shape) if fits else None


def _as_stated(scope: StageScope, stage: Stage, tensor: StageInput | StageOutput) -> TensorType | None:
    return tensor.dtype, tensor.shape


def _type_of_scalar(known: Collection[str], key: str) -> TensorType | None:
    return ("float32", (1,)) if key in known else None


def _type_of_carry(scope: StageScope, stage: Stage, tensor: StageOutput) -> TensorType | None:
    into = (t for t in stage.inputs if t.name == tensor.key and t.source in ("state", "zeros"))
    return next(((t.dtype, t.shape) for t in into), None)


def _section(scope: StageScope, stage: Stage, tensor: StageOutput) -> TensorType | None:
    return ("float32", (scope.lengths[tensor.key],)) if tensor.key in scope.lengths else None


_SUPPLIED: Mapping[Source, Callable[[StageScope, Stage, StageInput], TensorType | None]] = {
    "model": lambda scope, stage, tensor: _in_layout(scope.layout, tensor.key),
    "frozen": lambda scope, stage, tensor: _in_layout(scope.frozen, tensor.key),
    "client_state": lambda scope, stage, tensor: _type_of_tensor(scope.client_state, tensor.key),
    "probe": lambda scope, stage, tensor: ("float32", (1,)),
    "hyper": lambda scope, stage, tensor: _type_of_scalar(scope.hyper, tensor.key),
    "active": lambda scope, stage, tensor: ("float32", (1,)),
    "random": lambda scope, stage, tensor: ("float32", tensor.shape),
    "noise": _type_of_noise,
    "batch": _type_of_column,
    "state": _as_stated,
    "zeros": _as_stated,
    "counter": lambda scope, stage, tensor: _type_of_scalar(("steps", "weight"), tensor.key),
    "message": _type_of_message,
}
_TAKEN: Mapping[Destination, Callable[[StageScope, Stage, StageOutput], TensorType | None]] = {
    "carry": _type_of_carry,
    "state": _as_stated,
    "probe": lambda scope, stage, tensor: ("float32", (1,)),
    "upload": _section,
    "client_state": lambda scope, stage, tensor: _type_of_tensor(scope.client_state, tensor.key),
    "metric": lambda scope, stage, tensor: _type_of_scalar(scope.metrics, tensor.key),
    "prediction": lambda scope, stage, tensor: _as_stated(scope, stage, tensor) if tensor.key == PREDICTION else None,
    "message": _type_of_message,
}
# All keys of a destination that a stage may have to fill whole.
_WHOLE: Mapping[Destination, Callable[[StageScope], Collection[str]]] = {
    "upload": lambda scope: tuple(scope.lengths),
    "client_state": lambda scope: [tensor.name for tensor in scope.client_state],
    "metric": lambda scope: scope.metrics,
    "prediction": lambda scope: (PREDICTION,),
}


def _text(tensor: StageInput | StageOutput) -> str:
    return _type((tensor.dtype, tensor.shape))


def _type(type: TensorType) -> str:
    return f"{type[0]}{list(type[1])}"


def _refused(message: str) -> PlanRefused:
    return PlanRefused(message, code="plan_wiring")


def _shape_refusal(message: str) -> PlanRefused:
    return PlanRefused(message, code="plan_stages")
