"""The array functions, under the names of the Python array API standard: evaluated on NumPy at once, or recorded inside
a trace.

Where coterie differs from the standard: shapes are static; there are no in-place operations and no complex or unsigned
dtypes but uint8; the default dtypes are float32 and int32; indexing takes static integers, slices, None and Ellipsis,
or one integer array.
"""

from coterie.compute.numpy import indexing as indexing
from coterie.compute.numpy import interop as interop
from coterie.compute.numpy.creation import arange as arange
from coterie.compute.numpy.creation import asarray as asarray
from coterie.compute.numpy.creation import astype as astype
from coterie.compute.numpy.creation import bool_ as bool_
from coterie.compute.numpy.creation import eye as eye
from coterie.compute.numpy.creation import float16 as float16
from coterie.compute.numpy.creation import float32 as float32
from coterie.compute.numpy.creation import float64 as float64
from coterie.compute.numpy.creation import full as full
from coterie.compute.numpy.creation import full_like as full_like
from coterie.compute.numpy.creation import int32 as int32
from coterie.compute.numpy.creation import int64 as int64
from coterie.compute.numpy.creation import ones as ones
from coterie.compute.numpy.creation import ones_like as ones_like
from coterie.compute.numpy.creation import tril as tril
from coterie.compute.numpy.creation import triu as triu
from coterie.compute.numpy.creation import uint8 as uint8
from coterie.compute.numpy.creation import zeros as zeros
from coterie.compute.numpy.creation import zeros_like as zeros_like
from coterie.compute.numpy.elementwise import abs as abs
from coterie.compute.numpy.elementwise import add as add
from coterie.compute.numpy.elementwise import clip as clip
from coterie.compute.numpy.elementwise import divide as divide
from coterie.compute.numpy.elementwise import equal as equal
from coterie.compute.numpy.elementwise import exp as exp
from coterie.compute.numpy.elementwise import greater as greater
from coterie.compute.numpy.elementwise import greater_equal as greater_equal
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
from coterie.compute.numpy.elementwise import pow as pow
from coterie.compute.numpy.elementwise import reciprocal as reciprocal
from coterie.compute.numpy.elementwise import sign as sign
from coterie.compute.numpy.elementwise import sqrt as sqrt
from coterie.compute.numpy.elementwise import square as square
from coterie.compute.numpy.elementwise import subtract as subtract
from coterie.compute.numpy.elementwise import tanh as tanh
from coterie.compute.numpy.elementwise import where as where
from coterie.compute.numpy.linear import matmul as matmul
from coterie.compute.numpy.linear import outer as outer
from coterie.compute.numpy.linear import tensordot as tensordot
from coterie.compute.numpy.linear import vecdot as vecdot
from coterie.compute.numpy.manipulation import broadcast_to as broadcast_to
from coterie.compute.numpy.manipulation import concat as concat
from coterie.compute.numpy.manipulation import expand_dims as expand_dims
from coterie.compute.numpy.manipulation import flip as flip
from coterie.compute.numpy.manipulation import matrix_transpose as matrix_transpose
from coterie.compute.numpy.manipulation import moveaxis as moveaxis
from coterie.compute.numpy.manipulation import pad as pad
from coterie.compute.numpy.manipulation import permute_dims as permute_dims
from coterie.compute.numpy.manipulation import reshape as reshape
from coterie.compute.numpy.manipulation import split as split
from coterie.compute.numpy.manipulation import squeeze as squeeze
from coterie.compute.numpy.manipulation import stack as stack
from coterie.compute.numpy.manipulation import take as take
from coterie.compute.numpy.reduction import all as all
from coterie.compute.numpy.reduction import any as any
from coterie.compute.numpy.reduction import argmax as argmax
from coterie.compute.numpy.reduction import argmin as argmin
from coterie.compute.numpy.reduction import max as max
from coterie.compute.numpy.reduction import mean as mean
from coterie.compute.numpy.reduction import min as min
from coterie.compute.numpy.reduction import sum as sum
from coterie.compute.numpy.reduction import var as var
