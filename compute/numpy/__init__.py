"""The array functions, under the names of the Python array API standard (2024.12): evaluated on NumPy at once, or
recorded inside a trace.

Where coterie differs from the standard: shapes are static; there are no in-place operations and no complex or unsigned
dtypes but uint8; the default dtypes are float32 and int32, which is also that of positions; indexing takes static
integers, slices, None and Ellipsis, or integer arrays. ``absent.ABSENT`` tells of every name that is not here why, and
what to use instead. einsum, pad, split and swapaxes are NumPy's.
"""

import sys as _sys
from typing import NoReturn

import numpy as _numpy

from coterie.compute import table as _table  # noqa: F401  # pyright: ignore[reportUnusedImport]  for bind
from coterie.compute.dispatch import DISPATCH as _DISPATCH
from coterie.compute.numpy import indexing as indexing
from coterie.compute.numpy import interop as interop
from coterie.compute.numpy.absent import refuse_absent as _refuse_absent
from coterie.compute.numpy.bits import bitwise_and as bitwise_and
from coterie.compute.numpy.bits import bitwise_invert as bitwise_invert
from coterie.compute.numpy.bits import bitwise_left_shift as bitwise_left_shift
from coterie.compute.numpy.bits import bitwise_or as bitwise_or
from coterie.compute.numpy.bits import bitwise_right_shift as bitwise_right_shift
from coterie.compute.numpy.bits import bitwise_xor as bitwise_xor
from coterie.compute.numpy.contraction import einsum as einsum
from coterie.compute.numpy.creation import arange as arange
from coterie.compute.numpy.creation import asarray as asarray
from coterie.compute.numpy.creation import astype as astype
from coterie.compute.numpy.creation import bool_ as bool_
from coterie.compute.numpy.creation import empty as empty
from coterie.compute.numpy.creation import empty_like as empty_like
from coterie.compute.numpy.creation import eye as eye
from coterie.compute.numpy.creation import float16 as float16
from coterie.compute.numpy.creation import float32 as float32
from coterie.compute.numpy.creation import float64 as float64
from coterie.compute.numpy.creation import from_dlpack as from_dlpack
from coterie.compute.numpy.creation import full as full
from coterie.compute.numpy.creation import full_like as full_like
from coterie.compute.numpy.creation import int8 as int8
from coterie.compute.numpy.creation import int16 as int16
from coterie.compute.numpy.creation import int32 as int32
from coterie.compute.numpy.creation import int64 as int64
from coterie.compute.numpy.creation import linspace as linspace
from coterie.compute.numpy.creation import ones as ones
from coterie.compute.numpy.creation import ones_like as ones_like
from coterie.compute.numpy.creation import tril as tril
from coterie.compute.numpy.creation import triu as triu
from coterie.compute.numpy.creation import uint8 as uint8
from coterie.compute.numpy.creation import zeros as zeros
from coterie.compute.numpy.creation import zeros_like as zeros_like
from coterie.compute.numpy.cumulative import cumulative_prod as cumulative_prod
from coterie.compute.numpy.cumulative import cumulative_sum as cumulative_sum
from coterie.compute.numpy.cumulative import diff as diff
from coterie.compute.numpy.dtypes import __array_namespace_info__ as __array_namespace_info__
from coterie.compute.numpy.dtypes import can_cast as can_cast
from coterie.compute.numpy.dtypes import finfo as finfo
from coterie.compute.numpy.dtypes import iinfo as iinfo
from coterie.compute.numpy.dtypes import isdtype as isdtype
from coterie.compute.numpy.dtypes import result_type as result_type
from coterie.compute.numpy.elementary import acos as acos
from coterie.compute.numpy.elementary import acosh as acosh
from coterie.compute.numpy.elementary import asin as asin
from coterie.compute.numpy.elementary import asinh as asinh
from coterie.compute.numpy.elementary import atan as atan
from coterie.compute.numpy.elementary import atan2 as atan2
from coterie.compute.numpy.elementary import atanh as atanh
from coterie.compute.numpy.elementary import cos as cos
from coterie.compute.numpy.elementary import cosh as cosh
from coterie.compute.numpy.elementary import expm1 as expm1
from coterie.compute.numpy.elementary import hypot as hypot
from coterie.compute.numpy.elementary import log1p as log1p
from coterie.compute.numpy.elementary import log2 as log2
from coterie.compute.numpy.elementary import log10 as log10
from coterie.compute.numpy.elementary import logaddexp as logaddexp
from coterie.compute.numpy.elementary import pow as pow
from coterie.compute.numpy.elementary import sin as sin
from coterie.compute.numpy.elementary import sinh as sinh
from coterie.compute.numpy.elementary import tan as tan
from coterie.compute.numpy.elementwise import abs as abs
from coterie.compute.numpy.elementwise import add as add
from coterie.compute.numpy.elementwise import clip as clip
from coterie.compute.numpy.elementwise import copysign as copysign
from coterie.compute.numpy.elementwise import divide as divide
from coterie.compute.numpy.elementwise import equal as equal
from coterie.compute.numpy.elementwise import exp as exp
from coterie.compute.numpy.elementwise import greater as greater
from coterie.compute.numpy.elementwise import greater_equal as greater_equal
from coterie.compute.numpy.elementwise import isfinite as isfinite
from coterie.compute.numpy.elementwise import isinf as isinf
from coterie.compute.numpy.elementwise import isnan as isnan
from coterie.compute.numpy.elementwise import less as less
from coterie.compute.numpy.elementwise import less_equal as less_equal
from coterie.compute.numpy.elementwise import log as log
from coterie.compute.numpy.elementwise import logical_and as logical_and
from coterie.compute.numpy.elementwise import logical_not as logical_not
from coterie.compute.numpy.elementwise import logical_or as logical_or
from coterie.compute.numpy.elementwise import logical_xor as logical_xor
from coterie.compute.numpy.elementwise import maximum as maximum
from coterie.compute.numpy.elementwise import minimum as minimum
from coterie.compute.numpy.elementwise import multiply as multiply
from coterie.compute.numpy.elementwise import negative as negative
from coterie.compute.numpy.elementwise import not_equal as not_equal
from coterie.compute.numpy.elementwise import positive as positive
from coterie.compute.numpy.elementwise import reciprocal as reciprocal
from coterie.compute.numpy.elementwise import sign as sign
from coterie.compute.numpy.elementwise import signbit as signbit
from coterie.compute.numpy.elementwise import sqrt as sqrt
from coterie.compute.numpy.elementwise import square as square
from coterie.compute.numpy.elementwise import subtract as subtract
from coterie.compute.numpy.elementwise import tanh as tanh
from coterie.compute.numpy.elementwise import where as where
from coterie.compute.numpy.linear import matmul as matmul
from coterie.compute.numpy.linear import outer as outer
from coterie.compute.numpy.linear import tensordot as tensordot
from coterie.compute.numpy.linear import vecdot as vecdot
from coterie.compute.numpy.manipulation import broadcast_arrays as broadcast_arrays
from coterie.compute.numpy.manipulation import broadcast_to as broadcast_to
from coterie.compute.numpy.manipulation import concat as concat
from coterie.compute.numpy.manipulation import expand_dims as expand_dims
from coterie.compute.numpy.manipulation import flip as flip
from coterie.compute.numpy.manipulation import matrix_transpose as matrix_transpose
from coterie.compute.numpy.manipulation import meshgrid as meshgrid
from coterie.compute.numpy.manipulation import moveaxis as moveaxis
from coterie.compute.numpy.manipulation import pad as pad
from coterie.compute.numpy.manipulation import permute_dims as permute_dims
from coterie.compute.numpy.manipulation import repeat as repeat
from coterie.compute.numpy.manipulation import reshape as reshape
from coterie.compute.numpy.manipulation import roll as roll
from coterie.compute.numpy.manipulation import split as split
from coterie.compute.numpy.manipulation import squeeze as squeeze
from coterie.compute.numpy.manipulation import stack as stack
from coterie.compute.numpy.manipulation import swapaxes as swapaxes
from coterie.compute.numpy.manipulation import take as take
from coterie.compute.numpy.manipulation import tile as tile
from coterie.compute.numpy.manipulation import unstack as unstack
from coterie.compute.numpy.ordering import argsort as argsort
from coterie.compute.numpy.ordering import searchsorted as searchsorted
from coterie.compute.numpy.ordering import sort as sort
from coterie.compute.numpy.ordering import take_along_axis as take_along_axis
from coterie.compute.numpy.reduction import all as all
from coterie.compute.numpy.reduction import any as any
from coterie.compute.numpy.reduction import argmax as argmax
from coterie.compute.numpy.reduction import argmin as argmin
from coterie.compute.numpy.reduction import count_nonzero as count_nonzero
from coterie.compute.numpy.reduction import max as max
from coterie.compute.numpy.reduction import mean as mean
from coterie.compute.numpy.reduction import min as min
from coterie.compute.numpy.reduction import prod as prod
from coterie.compute.numpy.reduction import std as std
from coterie.compute.numpy.reduction import sum as sum
from coterie.compute.numpy.reduction import var as var
from coterie.compute.numpy.rounding import ceil as ceil
from coterie.compute.numpy.rounding import floor as floor
from coterie.compute.numpy.rounding import floor_divide as floor_divide
from coterie.compute.numpy.rounding import nextafter as nextafter
from coterie.compute.numpy.rounding import remainder as remainder
from coterie.compute.numpy.rounding import round as round
from coterie.compute.numpy.rounding import trunc as trunc

__array_api_version__ = "2024.12"

e, inf, nan, pi = _numpy.e, _numpy.inf, _numpy.nan, _numpy.pi
newaxis = None
bool = bool_  # the standard's name

_DISPATCH.functions = _sys.modules[__name__]


def __getattr__(name: str) -> NoReturn:
    _refuse_absent(name)
