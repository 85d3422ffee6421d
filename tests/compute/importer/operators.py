"""The table of translated operators: each with its inputs, attributes and operator set, as a file of one node."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.onnx.importer import learners

RNG = np.random.default_rng(4)


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> NDArray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def i(*values: int) -> NDArray:
    return np.asarray(values, np.int64)


def b(*shape: int) -> NDArray:
    return RNG.random(shape) > 0.5


def sizes(*scales: float) -> NDArray:
    return np.asarray(scales, np.float32)


NEAREST: list[dict[str, Any]] = [
    {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},  # as torch.onnx writes it
    {"nearest_mode": "ceil"},
    {"nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "align_corners"},
]
X = f(3, 4)
IMAGE = f(2, 4, 7, 6)
WAVE = f(2, 4, 9)
ODD = np.asarray([[np.nan, np.inf, -np.inf, 0.0, -2.5]], np.float32)
LOWEST = np.asarray([-(2**31), 7, -7], np.int32)


def recurrent(gates: int, size: int = 3, inputs: int = 4, directions: int = 1) -> list[NDArray]:
    """Weights of the input and of the state, and both offsets."""
    rows = gates * size
    return [f(directions, rows, inputs), f(directions, rows, size), f(directions, 2 * rows)]


LONG = f(5, 2, 4)
STATE, BOTH = f(1, 2, 3), f(2, 2, 3)
LENGTHS = np.asarray([5, 3], np.int32)

# operator, inputs (those from the mark on are constants of the file), attributes, operator set, outputs
Case = tuple[str, list[NDArray | None], int, dict[str, Any], int, int]


def case(
    operator: str,
    *inputs: NDArray | None,
    data: int | None = None,
    opset: int = 17,
    outputs: int = 1,
    **attributes: Any,
) -> Case:
    return operator, list(inputs), len(inputs) if data is None else data, attributes, opset, outputs


CASES: list[Case] = [
    *(
        case(op, X)
        for op in (
            "Abs Ceil Cos Erf Exp Floor HardSwish Identity Neg Relu Sigmoid Sign Sin Softplus Softsign Tanh"
        ).split()
    ),
    *(case(op, f(3, 4, low=-0.9, high=0.9)) for op in "Acos Asin Asinh Atan Atanh Cosh Sinh Tan".split()),
    case("Acosh", f(3, 4, low=1.5)),
    *(case(op, f(3, 4, low=0.5)) for op in "Log Reciprocal Sqrt".split()),
    *(case(op, X) for op in "Celu Elu HardSigmoid LeakyRelu Selu ThresholdedRelu".split()),
    case("Celu", X, alpha=2.0),
    case("Elu", X, alpha=0.5),
    case("HardSigmoid", X, alpha=0.3, beta=0.4),
    case("Mish", X, opset=18),
    case("Gelu", X, opset=20),
    case("Gelu", X, opset=20, approximate="tanh"),
    *(case(op, X, f(4)) for op in "Add Mul Sub".split()),
    case("Div", X, f(4, low=0.5)),
    case("Div", i(7, -7, 9), i(2, 2, -4), data=0),
    case("Div", i(7, -7, 9), i(2, 2, -4)),
    case("Div", LOWEST, i(-3, 3, 2).astype(np.int32)),
    case("Div", i(2**60 + 1, -(2**60) - 1, -9), i(3, 7, 3), data=0),
    case("Mod", i(7, -7, 9), i(2, 2, -4)),
    case("Mod", i(7, -7, 9), i(2, 2, -4), fmod=1),
    case("Mod", LOWEST, i(-3, 3, 2).astype(np.int32), fmod=1),
    case("Mod", f(5), f(5, low=0.5), fmod=1),
    case("Mod", f(5), f(5, low=0.5), data=0, fmod=1),
    case("Pow", f(3, 4, low=0.1), np.asarray(2.0, np.float32), data=1),
    case("Pow", f(3, 4, low=0.1), f(4)),
    *(case(op, X, f(4), f(3, 1)) for op in "Max Min Mean Sum".split()),
    *(case(op, X, f(4)) for op in "Equal Greater GreaterOrEqual Less LessOrEqual".split()),
    *(case(op, b(3, 4), b(4)) for op in "And Or Xor".split()),
    case("Not", b(3, 4)),
    case("Where", b(3, 4), X, f(4)),
    case("PRelu", X, f(4)),
    case("Round", f(3, 4) * 3),
    case("Cast", X, to=TensorProto.INT32),
    case("IsNaN", ODD),
    *(case("IsInf", ODD, detect_positive=n, detect_negative=m) for n in (0, 1) for m in (0, 1)),
    case("CastLike", i(1, 2), f(1)),
    case("Clip", X, np.asarray(-1.0, np.float32), None),
    case("Clip", X, None, np.asarray(1.0, np.float32)),
    case("Concat", X, f(2, 4), axis=0),
    case("Constant", value=numpy_helper.from_array(f(2, 2))),
    case("Constant", value_floats=[1.0, 2.0]),
    case("Constant", value_ints=[1, 2]),
    case("ConstantOfShape", i(2, 3), data=0, value=numpy_helper.from_array(np.asarray([3.0], np.float32))),
    case("ConstantOfShape", i(2), data=0),
    *(case("DepthToSpace", IMAGE, blocksize=2, mode=mode) for mode in ("DCR", "CRD")),
    case("SpaceToDepth", f(2, 3, 4, 6), blocksize=2),
    case("Dropout", X),
    case("Expand", f(3, 1), i(2, 1, 4), data=1),
    *(case("Flatten", IMAGE, axis=axis) for axis in (0, 1, 2, -1)),
    case("Gather", X, i(2, 0, -1), axis=1),
    case("Gather", X, i(2, 0, -1), data=1),
    case("Gather", X, np.asarray(1), data=1, axis=1),
    case("GatherElements", X, np.asarray([[0, 2, 1, 0]]), axis=0),
    case("GatherElements", X, np.asarray([[0, 3], [1, -1]]), data=1, axis=1),
    case("GatherND", X, np.asarray([[2, 0], [-1, 3]])),
    case("GatherND", X, np.asarray([[2], [0]]), data=1),
    case("GatherND", IMAGE, np.asarray([[[3, 1]], [[0, -1]]]), batch_dims=1),
    *(
        case("ScatterElements", X, np.asarray([[1, 0], [-1, 2]]), f(2, 2), data=data, axis=axis)
        for axis in (0, 1)
        for data in (1, 3)
    ),
    case("ScatterElements", i(1, 2, 3), i(1, 1), i(5, 6), opset=18, reduction="add"),
    *(
        case(
            "ScatterElements",
            X,
            np.asarray([[1, 0, 1], [-2, 2, 1]]),
            f(2, 3),
            data=data,
            opset=18,
            reduction=how,
            axis=axis,
        )
        for how, axis in (("max", 0), ("min", 0), ("max", 1))
        for data in (1, 3)
    ),
    case("ScatterElements", i(1, 2, 3), i(1, 1, 0), i(5, 1, -4), opset=18, reduction="max"),
    case("ScatterND", X, np.asarray([[2], [0], [2]]), f(3, 4), opset=18, reduction="max"),
    case("ScatterND", X, np.asarray([[2], [0], [2]]), f(3, 4), data=1, opset=18, reduction="min"),
    case("ScatterND", X, np.asarray([[2], [0]]), f(2, 4), data=1),
    case("ScatterND", X, np.asarray([[2, -1], [0, 1]]), f(2)),
    case("ScatterND", b(3, 4), np.asarray([[2, 1]]), b(1)),
    case("ScatterND", X, np.asarray([[2], [2]]), f(2, 4), data=1, opset=18, reduction="add"),
    *(case("TopK", X, i(2), data=1, outputs=2, axis=axis, largest=n) for axis, n in ((0, 1), (-1, 0))),
    *(case("Pad", IMAGE, i(0, 0, 1, 2, 0, 0, -1, 3), data=1, mode=mode) for mode in ("edge", "reflect")),
    case("Pad", IMAGE, i(1, 2), None, i(-1), data=1, opset=19, mode="wrap"),
    *(
        case("Resize", IMAGE, None, sizes(1, 1, *by), data=1, mode="nearest", **how)
        for by in ((2, 3), (0.6, 1.5))
        for how in NEAREST
    ),
    *(
        case("Resize", IMAGE, None, None, i(2, 4, 10, 5), data=1, mode=mode, coordinate_transformation_mode=how)
        for mode in ("linear", "cubic")
        for how in ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
    ),
    case("Resize", IMAGE, None, sizes(0.55, 2.3), data=1, mode="linear", opset=19, axes=[2, 3]),
    case(
        "Resize",
        IMAGE,
        None,
        sizes(1, 1, 2.3, 1.2),
        data=1,
        opset=19,
        mode="linear",
        coordinate_transformation_mode="half_pixel_symmetric",
    ),
    case("Resize", IMAGE, None, sizes(1, 1, 2, 2), data=1, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1),
    case("OneHot", i(1, 0, -1), np.asarray(3), f(2), data=1),
    case("Pad", IMAGE, i(0, 0, 1, 2, 0, 0, 3, 0), np.asarray(1.5, np.float32), data=1),
    case("Pad", IMAGE, i(0, 0, -1, 2, 0, 0, 3, -2), data=1),
    case("Pad", IMAGE, i(1, 2), None, i(-1), data=1, opset=18),
    case("Range", i(*[1])[0:1].reshape(()), np.asarray(7), np.asarray(2), data=0),
    case("Reshape", IMAGE, i(0, -1, 6), data=1),
    case("Shape", IMAGE),
    case("Shape", IMAGE, start=1, end=-1),
    case("Size", IMAGE),
    case("Slice", IMAGE, i(1, -3), i(9, -1), i(2, 3), data=1),
    case("Slice", IMAGE, i(-1, 5), i(-(2**60), 0), i(2, -1), i(-1, -2), data=1),
    case("Slice", X, i(0, 1), i(2**62, 3), data=1),
    case("Slice", X, i(-9), i(-9), i(0), i(-1), data=1),
    case("SequenceAt", X, i(1, 3), np.asarray(1), data=1, axis=1),
    case("SequenceAt", X, np.asarray(2), np.asarray(-1), data=1, axis=-2),
    case("SequenceAt", X, None, np.asarray(2), data=1, axis=1),
    case("SequenceAt", X, None, np.asarray(0), data=1, axis=1, keepdims=0),
    case("Split", X, i(1, 3), data=1, axis=1, outputs=2),
    case("Split", X, axis=1, outputs=2),
    case("Split", i(1, 2, 3, 4), i(1, 3), data=1, outputs=2),
    case("Split", f(7), num_outputs=3, outputs=3, opset=18),
    case("Squeeze", f(3, 1, 1), i(1), data=1),
    case("Squeeze", f(3, 1, 1)),
    case("Unsqueeze", X, i(0, -1), data=1),
    case("Tile", X, i(2, 3), data=1),
    case("Transpose", IMAGE),
    case("Transpose", IMAGE, perm=[0, 2, 3, 1]),
    case("Trilu", X, upper=0),
    case("Trilu", X, np.asarray(1), data=1),
    *(case(op, X, axis=1, keepdims=keep) for op in ("ArgMax", "ArgMin") for keep in (0, 1)),
    case("BatchNormalization", IMAGE, f(4), f(4), f(4), f(4, low=0.5)),
    case("CumSum", X, np.asarray(1), data=1),
    *(case("CumSum", X, np.asarray(-2), data=1, exclusive=n, reverse=m) for n, m in ((1, 0), (0, 1), (1, 1))),
    case("Einsum", X, f(4, 2), equation="ij,jk->ki"),
    case("Gemm", X, f(4, 2), f(2), alpha=0.5, beta=2.0),
    case("Gemm", f(4, 3), f(2, 4), transA=1, transB=1),
    case("GroupNormalization", IMAGE, f(4), f(4), num_groups=2, opset=21),
    case("InstanceNormalization", IMAGE, f(4), f(4)),
    *(case("LpNormalization", np.hstack([X, 0 * X[:, :1]]), axis=0, p=p) for p in (1, 2)),
    case("LayerNormalization", IMAGE, f(7, 6), f(7, 6), axis=2),
    case("LayerNormalization", X, f(4), epsilon=0.1),
    case("LogSoftmax", X, axis=0),
    case("Softmax", X),
    case("MatMul", f(2, 3, 4), f(4, 5)),
    *(
        made
        for op in "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare".split()
        for made in (
            case(f"Reduce{op}", f(2, 3, 4, low=0.5)),
            case(f"Reduce{op}", f(2, 3, 4, low=0.5), keepdims=0, axes=[0, -1]),
        )
    ),
    case("ReduceSum", f(2, 3, 4), i(1), data=1, keepdims=0),
    case("ReduceSum", f(2, 3, 4), noop_with_empty_axes=1),
    case("ReduceMean", f(2, 3, 4), i(-1, 0), data=1, opset=18),
    case("Conv", IMAGE, f(6, 2, 3, 2), f(6), group=2, strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2]),
    *(
        case("Conv", IMAGE, f(3, 4, 2, 4), auto_pad=how, strides=[2, 2])
        for how in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("Conv", WAVE, f(2, 4, 3), f(2), pads=[1, 2], strides=[2]),
    case(
        "ConvTranspose", IMAGE, f(4, 3, 3, 3), f(6), group=2, strides=[2, 2], pads=[1, 0, 1, 2], output_padding=[1, 0]
    ),
    case("ConvTranspose", WAVE, f(4, 2, 3), strides=[2], output_padding=[1]),
    # as tf2onnx writes a Conv2DTranspose
    case("ConvTranspose", IMAGE, f(4, 3, 3, 3), f(3), strides=[2, 2], output_shape=[14, 13]),
    case("ConvTranspose", IMAGE, f(4, 3, 2, 2), f(3), strides=[3, 3], output_shape=[21, 18]),
    case("ConvTranspose", WAVE, f(4, 2, 4), strides=[3], output_shape=[25]),
    *(
        case("ConvTranspose", IMAGE, f(4, 3, 4, 3), f(3), strides=[1, 2], auto_pad=how)
        for how in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("AveragePool", IMAGE, kernel_shape=[2, 3], strides=[2, 1]),
    *(case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 0], count_include_pad=n) for n in (0, 1)),
    case("AveragePool", WAVE, kernel_shape=[4], strides=[2], ceil_mode=1, opset=19),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", IMAGE, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", WAVE, kernel_shape=[3], strides=[3]),
    case("GlobalAveragePool", IMAGE),
    case("GlobalMaxPool", IMAGE),
    *(
        case("GRU", LONG, *recurrent(3), data=1, hidden_size=3, linear_before_reset=n, direction=way, outputs=2)
        for n in (0, 1)
        for way in ("forward", "reverse")
    ),
    case("GRU", LONG, *recurrent(3)[:2], data=1, hidden_size=3, outputs=1),
    case("GRU", LONG, *recurrent(3), LENGTHS, STATE, data=6, hidden_size=3, outputs=2),
    case("GRU", LONG, *recurrent(3), LENGTHS, data=5, hidden_size=3, outputs=2, direction="reverse"),
    case(
        "GRU",
        LONG,
        *recurrent(3, directions=2),
        None,
        BOTH,
        data=1,
        hidden_size=3,
        direction="bidirectional",
        outputs=2,
        activations=["HardSigmoid", "ScaledTanh", "Sigmoid", "LeakyRelu"],
        activation_alpha=[0.3, 0.9, 0.1],
        activation_beta=[0.4, 0.7],
    ),
    case("GRU", LONG, *recurrent(3), data=1, hidden_size=3, activations=["Sigmoid", "Elu"], clip=0.7),
    case("LSTM", LONG, *recurrent(4), data=1, hidden_size=3, outputs=3),
    case("LSTM", LONG, *recurrent(4), LENGTHS, STATE, f(1, 2, 3), data=7, hidden_size=3, outputs=3),
    case(
        "LSTM",
        LONG,
        *recurrent(4, directions=2),
        None,
        BOTH,
        f(2, 2, 3),
        f(2, 9),
        data=1,
        hidden_size=3,
        direction="bidirectional",
        outputs=3,
    ),
    case("LSTM", LONG, *recurrent(4), data=1, hidden_size=3, input_forget=1, outputs=3),
    case("RNN", LONG, *recurrent(1), data=1, hidden_size=3, outputs=2),
    *(
        case(
            "RNN", LONG, *recurrent(1), LENGTHS, data=5, hidden_size=3, outputs=2, direction="reverse", activations=[a]
        )
        for a in ("Relu", "Softsign", "Softplus")
    ),
    case(
        "RNN",
        LONG,
        *recurrent(1),
        data=1,
        hidden_size=3,
        activations=["Affine"],
        activation_alpha=[0.3],
        activation_beta=[0.1],
    ),
    *(
        case(
            "LinearClassifier",
            X,
            coefficients=f(12).tolist(),
            intercepts=f(3).tolist(),
            outputs=2,
            classlabels_ints=[4, 2, 9],
            post_transform=how,
        )
        for how in ("NONE", "SOFTMAX", "LOGISTIC")
    ),
    case(
        "LinearClassifier",
        X,
        coefficients=[1.0, -2.0, 0.5, 0.25, -1.0, 2.0, -0.5, -0.25],
        intercepts=[0.5, -0.5],
        classlabels_ints=[0, 1],
        post_transform="LOGISTIC",
        outputs=2,
    ),
    case("LinearRegressor", X, coefficients=f(8).tolist(), intercepts=f(2).tolist(), targets=2),
    case("LinearRegressor", X, coefficients=f(4).tolist()),
    case("Scaler", X, offset=f(4).tolist(), scale=f(4).tolist()),
    case("Scaler", i(3, 4).reshape(1, 2), offset=[0.5], scale=[2.0]),
    *(case("Normalizer", np.vstack([X, 0 * X[:1]]), norm=norm) for norm in ("L1", "L2")),
    case("Normalizer", f(3, 4, low=0.5), norm="MAX"),
    case("ArrayFeatureExtractor", X, np.asarray([[2, 0]]), data=1),
    case("Binarizer", X, threshold=0.5),
    case("FeatureVectorizer", X, f(3, 2), inputdimensions=[4, 2]),
    *(
        case(
            "Imputer",
            np.where(X > 1, gap, X).astype(np.float32),
            imputed_value_floats=[1.0, 2.0, 3.0, 4.0],
            replaced_value_float=gap,
        )
        for gap in (np.nan, -7.0)
    ),
]
LEARNERS = {*learners.RULES, *learners.WRITTEN_OUT}


def built(
    operator: str, inputs: list[NDArray | None], data: int, attributes: dict[str, Any], opset: int, outputs: int
) -> bytes:
    """A graph of one node; the inputs before the mark are inputs of the graph, the others stand in the file."""
    names = ["" if array is None else f"in{index}" for index, array in enumerate(inputs)]
    domain = learners.DOMAIN if operator in LEARNERS else ""
    results = [f"out{index}" for index in range(outputs)]
    if operator == "SequenceAt":
        # Of a sequence, which is made first, from all inputs but the last.
        cut = names[:-1] if names[1] else names[:1]
        nodes = [
            helper.make_node("SplitToSequence", cut, ["parts"], "before", **attributes),
            helper.make_node(operator, ["parts", names[-1]], results, "the_node"),
        ]
    else:
        nodes = [helper.make_node(operator, names, results, "the_node", domain=domain, **attributes)]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names[:data], inputs[:data], strict=True)
        if array is not None
    ]
    held = [
        numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        for name, array in zip(names[data:], inputs[data:], strict=True)
        if array is not None
    ]
    told = [onnxruntime_output(f"out{index}") for index in range(outputs)]
    graph = helper.make_graph(nodes, "one", given, told, held)
    versions = [helper.make_opsetid("", opset), helper.make_opsetid(learners.DOMAIN, 3)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10 if opset > 20 else 8)
    return model.SerializeToString()


def onnxruntime_output(name: str) -> Any:
    """An output whose type the runtime infers."""
    return helper.make_empty_tensor_value_info(name)
