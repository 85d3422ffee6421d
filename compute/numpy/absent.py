"""What of the array API standard coterie does not have: name → why, and what to use instead."""

from typing import NoReturn

from coterie.compute.numpy.elsewhere import refuse_function

_SHAPE = "the shape of its result depends on data, and shapes are static"
_COMPLEX = "there are no complex dtypes: ONNX Runtime has no kernels for them"
_KERNELS = "ONNX Runtime's kernels of this dtype are too few for every law of the primitives to hold"
_EXTENSION = "this optional extension of the standard is a package of its own here"

ABSENT: dict[str, tuple[str, str]] = {
    "complex64": (_COMPLEX, "carry real and imaginary parts in two arrays"),
    "complex128": (_COMPLEX, "carry real and imaginary parts in two arrays"),
    "conj": (_COMPLEX, "carry real and imaginary parts in two arrays"),
    "fft": (_EXTENSION, "use coterie.compute.fft, which gives real and imaginary parts"),
    "imag": (_COMPLEX, "carry real and imaginary parts in two arrays"),
    "linalg": (_EXTENSION, "use coterie.compute.linalg, for the host, or matmul, tensordot, vecdot and outer"),
    "nonzero": (_SHAPE, "use where(mask, x, 0), or top_k for a known number of elements"),
    "real": (_COMPLEX, "carry real and imaginary parts in two arrays"),
    "uint16": (_KERNELS, "use int32"),
    "uint32": (_KERNELS, "use int64"),
    "uint64": (_KERNELS, "use int64"),
    "unique_all": (_SHAPE, "use sort, or ids prepared on the host"),
    "unique_counts": (_SHAPE, "use sum(one_hot(ids, n), axis=0)"),
    "unique_inverse": (_SHAPE, "use ids prepared on the host"),
    "unique_values": (_SHAPE, "use sort, or ids prepared on the host"),
}

# What is there, and takes or gives less than the standard asks.
NARROWER: dict[str, str] = {
    "__getitem__": f"no masks ({_SHAPE}) and no arrays beside slices",
    "__setitem__": "arrays are never written to; where, concat and scatter_add make new ones",
    "argmax": "axes of less than 2**24 elements; NaN has no place",
    "argmin": "axes of less than 2**24 elements; NaN has no place",
    "cumulative_prod": "uint8 is multiplied as int32, there being no uint32",
    "cumulative_sum": "uint8 is added as int32, there being no uint32",
    "empty": "zeros, because nothing could fill it",
    "floor_divide": "of floats, the floor of the rounded quotient",
    "max": "not of nothing",
    "min": "not of nothing",
    "prod": "uint8 is multiplied as int32, there being no uint32",
    "remainder": "of floats, within the rounding of the dividend",
    "repeat": "an array of counts must be known when the function is traced",
    "signbit": "not the sign of NaN, which no operator of ONNX tells",
    "sort": "NaN has no defined place",
    "sum": "uint8 is added as int32, there being no uint32",
}


def refuse_absent(name: str) -> NoReturn:
    """Raise AttributeError that tells why there is no such function, and what to use."""
    if name in ABSENT:
        why, instead = ABSENT[name]
        raise AttributeError(f"coterie.compute.numpy has no {name}: {why}. Instead, {instead}.", name=name)
    refuse_function(name)
