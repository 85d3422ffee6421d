"""Operands and attributes for every primitive: the table over which the laws of primitives are tested."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from coterie.compute.array import Array, bind
from coterie.compute.ir import NDArray


@dataclass(frozen=True)
class Case:
    """Operands (float64 ones are tried as float32 too) and attributes."""

    operands: tuple[NDArray, ...]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])


def spread(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> NDArray:
    """Distinct numbers in random order, none at 0 or in an array of another seed: far from every kink."""
    count = int(np.prod(shape))
    numbers = np.linspace(low, high, count + count % 2)[:count] + 0.0137 * seed
    return np.random.default_rng(seed).permutation(numbers).reshape(shape)


def ints(*numbers: int) -> NDArray:
    return np.asarray(numbers, np.int32)


def case(*operands: NDArray, **attributes: Any) -> Case:
    return Case(operands, attributes)


def window(
    stride: tuple[int, int] = (1, 1),
    padding: Any = ((0, 0), (0, 0)),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


A, B = spread(3, 4), spread(3, 4, seed=1)
ROW, COLUMN, NUMBER, ONE = spread(4, seed=2), spread(3, 1, seed=3), np.asarray(1.5), np.asarray([0.7])
BROADCASTS = [
    case(A, B),
    case(A, ROW),
    case(COLUMN, A),
    case(COLUMN, ROW),
    case(A, NUMBER),
    case(NUMBER, NUMBER + 1),
    case(ONE, NUMBER),
    case(ONE, A),
]
IMAGE = spread(2, 4, 6, 5)
PLAIN, STRIDED = window(), window((2, 2), ((1, 0), (2, 1)))
DILATED, GROUPED = window((1, 2), ((1, 1), (1, 1)), (2, 1)), window((2, 1), ((1, 1), (0, 2)), groups=2)
# Stride, dilation, groups and padding on some sides at once: [2, 4, 6, 5] and [6, 2, 3, 2] make [2, 6, 3, 5].
TOGETHER = window((2, 1), ((1, 0), (0, 2)), (1, 2), groups=2)
BY_CHANNEL = window(padding=((1, 1), (1, 1)), groups=4)
TABLE = spread(5, 3)
# Enough examples, and rows short enough, to lie beside each other in the ONNX form.
BATCH, UNEVEN = spread(4, 2, 4, 3), window(padding=((1, 0), (0, 2)))
UNEVEN_ALONE = window(padding=((1, 0), (0, 1)))


def positive(cases: list[Case]) -> list[Case]:
    return [Case((c.operands[0], np.abs(c.operands[1]) + 0.5)) for c in cases]


def strip(kind: str, **more: Any) -> dict[str, Any]:
    return {"kernel": (2, 2), "stride": (2, 2), **({"padding": ((0, 0), (0, 0))} if kind == "max" else {}), **more}


CASES: dict[str, list[Case]] = {
    "constant": [case(value=A), case(value=NUMBER), case(value=ints(1, 2))],
    "astype": [
        case(A, dtype="float32"),
        case(A, dtype="int32"),
        case(ints(0, 3), dtype="float64"),
        case(A > 0, dtype="float32"),
    ],
    "stop_gradient": [case(A), case(NUMBER)],
    "barrier": [case(A), case(NUMBER)],
    "negative": [case(A), case(NUMBER), case(ints(1, -2))],
    **dict.fromkeys(("add", "subtract", "multiply", "maximum", "minimum"), BROADCASTS),
    "divide": positive(BROADCASTS),
    "exp": [case(A), case(NUMBER)],
    "log": [case(np.abs(A) + 0.3), case(NUMBER)],
    "sqrt": [case(np.abs(A) + 0.3), case(NUMBER)],
    **{name: [case(A), case(NUMBER), case(10 * A)] for name in ("tanh", "sigmoid", "relu", "softplus")},
    **{name: [case(A), case(NUMBER), case(3 * A)] for name in ("sin", "cos", "atan", "erf")},
    "log1p": [case(np.abs(A) - 0.9), case(0.01 * A), case(NUMBER)],
    "floor": [case(0.97 * A), case(NUMBER)],
    # Positive bases, and any base to whole exponents, through which no gradient is asked.
    "power": [
        *(Case((np.abs(c.operands[0]) + 0.3, c.operands[1])) for c in BROADCASTS),
        case(ints(-3, 0, 2), ints(3, 0, 5)),
    ],
    "floor_divide": [
        case(ints(7, -7, 7, -7, 6, 0), ints(2, 2, -2, -2, 3, 5)),
        case(ints(5, -(2**31), 9), ints(0, -1, -1)),
        case(np.asarray([7, 9], np.uint8), np.asarray([2, 0], np.uint8)),
        case(np.asarray([[2**40], [-5]]), np.asarray([3, -7])),
    ],
    "softmax": [case(A, axis=0), case(A, axis=1), case(spread(2, 3, 2), axis=1)],
    "equal": [case(A, B), case(A, A), case(A, ROW), case(ints(1, 2), ints(1, 3))],
    "greater": [case(A, B), case(A, NUMBER), case(ints(1, 2), ints(1, 1))],
    "where": [
        case(A > 0, A, B),
        case(A > 0, ROW, NUMBER),
        case(ROW > 0, A, COLUMN),
        case(ROW > 0, A > 1, COLUMN > 0),
    ],
    "reshape": [case(A, shape=(2, 6)), case(ONE, shape=()), case(NUMBER, shape=(1, 1))],
    "transpose": [
        case(A, permutation=(1, 0)),
        case(spread(2, 3, 4), permutation=(2, 0, 1)),
        case(NUMBER, permutation=()),
    ],
    "broadcast_to": [case(ROW, shape=(3, 4)), case(NUMBER, shape=(2, 2)), case(COLUMN, shape=(2, 3, 4))],
    "slice": [
        case(A, starts=(1, 0), stops=(3, 4)),
        case(A, starts=(0, 1), stops=(1, 3)),
        case(A, starts=(0, 0), stops=(3, 4)),
    ],
    "strided_slice": [
        case(A, starts=(0, 1), stops=(3, 4), steps=(2, 1)),
        case(A, starts=(1, 0), stops=(2, 4), steps=(1, 3)),
        case(A, starts=(0, 0), stops=(3, 4), steps=(1, 1)),
        case(spread(2, 7, 5), starts=(0, 1, 0), stops=(2, 7, 5), steps=(1, 3, 2)),
    ],
    "pad": [
        case(A, before=(1, 0), after=(0, 2), value=0.0),
        case(ROW, before=(2,), after=(1,), value=-3.0),
        case(NUMBER, before=(), after=(), value=0.0),
    ],
    "concat": [case(A, B, axis=0), case(A, COLUMN, B, axis=1), case(ROW, axis=0)],
    "gather": [
        case(TABLE, ints(0, 3, 3, 4), axis=0),
        case(TABLE, ints(2, -1, 0, 0).reshape(2, 2), axis=1),
        case(TABLE, np.asarray(2, np.int32), axis=0),
        case(spread(4), np.asarray(1, np.int64), axis=0),
        case(spread(2, 3, 2), ints(2, 0), axis=1),
    ],
    "gather_along": [
        case(TABLE, ints(2, -1, 0).reshape(1, 3), axis=0),
        case(TABLE, np.asarray([[0, 0], [1, 2], [2, 2], [-3, 1], [0, 1]]), axis=1),
        case(spread(4), ints(1, 1, 3), axis=0),
        case(spread(2, 3, 2), ints(*range(3), *range(3), 0, 0, 0, 2, 2, 2).reshape(2, 3, 2), axis=1),
    ],
    "scatter_add": [
        case(TABLE, ints(0, 3, 3, -1), spread(4, 3, seed=1)),
        case(TABLE, ints(2, 1, 0, 2).reshape(2, 2), spread(2, 2, 3, seed=1)),
        case(TABLE, np.asarray(2, np.int64), spread(3, seed=1)),
        case(spread(4), ints(1, 1, 3), spread(3, seed=1)),
        case(spread(4), np.asarray(1, np.int32), np.asarray(0.5)),
    ],
    "cumsum": [
        case(A, axis=0, reverse=False),
        case(A, axis=1, reverse=True),
        case(spread(4), axis=0, reverse=False),
        case(ints(3, -1, 2), axis=0, reverse=True),
    ],
    "top_k": [
        case(A, k=2, axis=1, largest=True),
        case(A, k=3, axis=0, largest=False),
        case(ints(2, 3, 3, 1, 2), k=5, axis=0, largest=True),
        case(ints(2, 3, 3, 1, 2), k=4, axis=0, largest=False),
    ],
    "sum": [
        case(A, axes=(0,), keepdims=False),
        case(A, axes=(0, 1), keepdims=False),
        case(A, axes=(1,), keepdims=True),
        case(ROW, axes=(0,), keepdims=False),
    ],
    "max": [
        case(A, axes=(0,), keepdims=False),
        case(A, axes=(0, 1), keepdims=True),
        case(spread(2, 3, 2), axes=(0, 2), keepdims=False),
    ],
    "matmul": [
        case(A, B.T),
        case(spread(2, 3, 4), spread(2, 4, 2)),
        case(spread(2, 1, 3, 4), spread(5, 4, 2)),
        case(A, spread(2, 4, 3)),
    ],
    "gemm": [
        case(A, B.T, transpose_a=False, transpose_b=False),
        case(A.T, B.T, COLUMN, transpose_a=True, transpose_b=False),
        case(A, B, spread(3, 3), transpose_a=False, transpose_b=True),
        case(A.T, B, NUMBER, transpose_a=True, transpose_b=True),
    ],
    "conv": [
        case(IMAGE, spread(3, 4, 3, 2), **PLAIN),
        case(IMAGE, spread(3, 4, 3, 2), spread(3), **STRIDED),
        case(IMAGE, spread(2, 4, 2, 3), **DILATED),
        case(IMAGE, spread(6, 2, 2, 2), spread(6), **GROUPED),
        case(IMAGE, spread(6, 2, 3, 2), **TOGETHER),
        case(IMAGE, spread(4, 1, 3, 3), spread(4), **BY_CHANNEL),
        case(BATCH, spread(3, 2, 2, 2), spread(3), **UNEVEN),
        case(spread(10, 2, 3, 3), spread(2, 1, 1, 2), **window(padding=((0, 0), (2, 1)), dilation=(1, 2), groups=2)),
    ],
    "conv_input_gradient": [
        case(spread(2, 3, 4, 4), spread(3, 4, 3, 2), size=(6, 5), **PLAIN),
        case(spread(2, 3, 3, 4), spread(3, 4, 3, 2), size=(6, 5), **STRIDED),
        case(spread(2, 2, 6, 3), spread(2, 4, 2, 3), size=(6, 5), **DILATED),
        case(spread(2, 6, 4, 6), spread(6, 2, 2, 2), size=(6, 5), **GROUPED),
        case(spread(2, 6, 3, 5), spread(6, 2, 3, 2), size=(6, 5), **TOGETHER),
        case(spread(2, 4, 6, 5), spread(4, 1, 3, 3), size=(6, 5), **BY_CHANNEL),
        case(spread(4, 3, 4, 4), spread(3, 2, 2, 2), size=(4, 3), **UNEVEN),
        case(
            spread(10, 2, 3, 4),
            spread(2, 1, 1, 2),
            size=(3, 3),
            **window(padding=((0, 0), (2, 1)), dilation=(1, 2), groups=2),
        ),
    ],
    "conv_weight_gradient": [
        case(IMAGE, spread(2, 3, 4, 4), kernel=(3, 2), **PLAIN),
        case(IMAGE, spread(2, 3, 3, 4), kernel=(3, 2), **STRIDED),
        case(IMAGE, spread(2, 2, 6, 3), kernel=(2, 3), **DILATED),
        case(IMAGE, spread(2, 6, 4, 6), kernel=(2, 2), **GROUPED),
        case(IMAGE, spread(2, 6, 3, 5), kernel=(3, 2), **TOGETHER),
        case(IMAGE, spread(2, 4, 6, 5), kernel=(3, 3), **BY_CHANNEL),
        case(
            IMAGE,
            spread(2, 4, 2, 2),
            kernel=(3, 2),
            **window(stride=(2, 3), padding=((1, 0), (1, 2)), dilation=(2, 3), groups=4),
        ),
        case(spread(1, 2, 4, 4), spread(1, 2, 3, 3), kernel=(2, 2), **PLAIN),
        case(spread(2, 1, 4, 4), spread(2, 3, 4, 4), kernel=(2, 2), **UNEVEN_ALONE),
        case(spread(2, 1, 6, 5), spread(2, 3, 3, 4), kernel=(3, 2), **STRIDED),
        case(IMAGE, spread(2, 3, 6, 5), kernel=(3, 1), **window(padding=((1, 1), (0, 0)))),
        case(IMAGE, spread(2, 3, 3, 3), kernel=(3, 3), **window(stride=(2, 2), padding=((1, 1), (1, 1)))),
        case(IMAGE, spread(2, 3, 2, 3), kernel=(1, 1), **window(stride=(3, 2))),
        case(IMAGE, spread(2, 6, 3, 2), kernel=(1, 1), **window(stride=(2, 3), groups=2)),
        case(IMAGE, spread(2, 3, 3, 3), kernel=(1, 1), **window(stride=(2, 3), padding=((0, 0), (1, 1)))),
    ],
    "max_pool": [
        case(IMAGE, **strip("max")),
        case(IMAGE, **strip("max", kernel=(3, 2), stride=(3, 2))),
        case(IMAGE, **strip("max", kernel=(3, 3), stride=(2, 2))),
        case(IMAGE - 5.0, **strip("max", kernel=(3, 3), stride=(2, 1), padding=((1, 0), (1, 1)))),
        case(IMAGE, **strip("max", kernel=(1, 1), stride=(2, 2))),
    ],
    "average_pool": [
        case(IMAGE, **strip("average")),
        case(IMAGE, **strip("average", kernel=(6, 5), stride=(6, 5))),
        case(IMAGE, **strip("average", kernel=(3, 2), stride=(1, 2))),
    ],
    "enlarge": [case(spread(2, 2, 3, 2), factors=(2, 3)), case(spread(1, 1, 2, 2), factors=(1, 2))],
}


def apply(name: str, c: Case) -> Callable[..., Array]:
    return lambda *operands: bind(name, *operands, **c.attributes)


def single(c: Case) -> Case:
    """The case in float32, the dtype of plans."""

    def narrow(x: Any) -> Any:
        if isinstance(x, (np.ndarray, np.generic)):
            array = np.asarray(cast("NDArray", x))
            return array.astype(np.float32) if array.dtype == np.float64 else array
        return "float32" if isinstance(x, str) and x == "float64" else x

    return Case(tuple(map(narrow, c.operands)), {name: narrow(value) for name, value in c.attributes.items()})


def floats(c: Case) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(c.operands) if x.dtype.kind == "f")
