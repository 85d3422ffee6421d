"""Operators of ``ai.onnx.ml``, the domain in which converters write learners of scikit-learn.

The two linear learners hold their weights in attributes. Reading writes each of them out as nodes with weights and
names of their own (``NODE.coefficients``, ``NODE.intercepts``, ``NODE.scores``), so that it can be trained and cut.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.onnx.importer.graph import Step
from coterie.compute.onnx.importer.operation import Operation, Rule, node_refused

DOMAIN = "ai.onnx.ml"
# It makes a map from class to number of each row; the numbers stay an array here.
MAP = "ZipMap"
_TRANSFORMS = {"NONE": "Identity", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A node written out. held: its weights and constants by name. text: outputs that hold text."""

    steps: tuple[Step, ...]
    held: Mapping[str, NDArray]
    text: frozenset[str] = field(default_factory=frozenset[str])


def written_out(step: Step) -> Written:
    """A linear learner as nodes. Raises GraphRefused for one that is damaged or of a form that is not translated."""
    return _WRITERS[step.operator](step)


def _classifier(step: Step) -> Written:
    labels, scores = f"{step.name}.labels", f"{step.name}.scores"
    numbers = step.attributes.get("classlabels_ints", ())
    names = step.attributes.get("classlabels_strings", ())
    count = len(numbers) or len(names)
    made, held = _linear(step, count, scores)
    outputs = (*step.outputs, "", "")[:2]
    if outputs[1]:
        made.append(_transformed(step, scores, outputs[1]))
    if not outputs[0] or names:
        return Written(steps=tuple(made), held=held, text=frozenset({outputs[0]} - {""}))
    place = f"{step.name}.place"
    made += [
        Step("ArgMax", step.name, (scores,), (place,), {"axis": 1, "keepdims": 0}),
        Step("Gather", step.name, (labels, place), (outputs[0],), {}),
    ]
    return Written(steps=tuple(made), held=held | {labels: np.asarray(numbers, np.int64)})


def _regressor(step: Step) -> Written:
    scores = f"{step.name}.scores"
    made, held = _linear(step, int(step.attributes.get("targets", 1)), scores)
    made.append(_transformed(step, scores, step.outputs[0]))
    return Written(steps=tuple(made), held=held)


def _linear(step: Step, count: int, scores: str) -> tuple[list[Step], dict[str, NDArray]]:
    """x → x coefficientsᵀ + intercepts, coefficients [count, features]."""
    numbers = np.asarray(step.attributes.get("coefficients", ()), np.float32)
    offsets = np.asarray(step.attributes.get("intercepts", ()) or np.zeros(count), np.float32)
    if not count or not numbers.size or numbers.size % count or offsets.size != count:
        _refuse(
            step,
            f"{numbers.size} coefficients and {offsets.size} intercepts are not those of {count} classes or targets",
            "Export a learner of two classes with both of them, as skl2onnx does.",
        )
    weight, offset, like = f"{step.name}.coefficients", f"{step.name}.intercepts", f"{step.name}.features"
    steps = [
        Step("CastLike", step.name, (step.inputs[0], weight), (like,), {}),
        Step("Gemm", step.name, (like, weight, offset), (scores,), {"transB": 1}),
    ]
    return steps, {weight: numbers.reshape(count, -1), offset: offsets}


def _transformed(step: Step, scores: str, output: str) -> Step:
    how = step.attributes.get("post_transform", "NONE")
    if how not in _TRANSFORMS:
        _refuse(step, f"its post_transform is {how!r}", f"Only {', '.join(_TRANSFORMS)} are translated.")
    return Step(_TRANSFORMS[how], step.name, (scores,), (output,), {})


def _refuse(step: Step, why: str, hint: str) -> NoReturn:
    raise node_refused(step.operator, step.name, why, hint)


_WRITERS: Mapping[str, Callable[[Step], Written]] = {"LinearClassifier": _classifier, "LinearRegressor": _regressor}
WRITTEN_OUT = frozenset(_WRITERS)


def _floats(x: Array) -> Array:
    return x if x.type.is_float else cnp.astype(x, "float32")


def _numbers(node: Operation, name: str, like: Array) -> NDArray:
    if not node.option(name, ()):
        node.refuse(f"it has no {name}", "The file is damaged: export it again.")
    return np.asarray(node.attributes[name], like.dtype)


def _scaler(node: Operation) -> Array:
    x = _floats(node[0])
    return (x - _numbers(node, "offset", x)) * _numbers(node, "scale", x)


def _normaliser(node: Operation) -> Array:
    x = _floats(node[0])
    norms: dict[str, Callable[[], Array]] = {
        "MAX": lambda: cnp.max(x, axis=-1, keepdims=True),
        "L1": lambda: cnp.sum(cnp.abs(x), axis=-1, keepdims=True),
        "L2": lambda: cnp.sqrt(cnp.sum(x * x, axis=-1, keepdims=True)),
    }
    if (how := node.option("norm", "MAX")) not in norms:
        node.refuse(f"its norm is {how!r}", f"There are {', '.join(norms)}.")
    size = norms[how]()
    # A row of zeros stays as it is.
    return x / cnp.where(size == 0, cnp.ones_like(size), size)


def _extractor(node: Operation) -> Array:
    x, places = node[0], cnp.reshape(node[1], (-1,))
    return cnp.take(x if x.ndim > 1 else cnp.reshape(x, (1, -1)), places, axis=-1)


def _binarizer(node: Operation) -> Array:
    x = node[0]
    return cnp.astype(x > node.option("threshold", 0.0), x.dtype)


def _imputer(node: Operation) -> Array:
    x = node[0]
    if not x.type.is_float:
        node.refuse("its input holds no floats", "Export with float32 inputs.")
    absent, put = node.option("replaced_value_float", 0.0), _numbers(node, "imputed_value_floats", x)
    missing = cnp.isnan(x) if np.isnan(absent) else x == absent
    return cnp.where(missing, put, x)


RULES: dict[str, Rule] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": lambda node: cnp.concat([_floats(node[i]) for i in range(len(node.inputs))], axis=1),
    "Imputer": _imputer,
    "Normalizer": _normaliser,
    "Scaler": _scaler,
}
