"""The array, and how primitives are applied to it. The array functions, which are its methods, come with it, and the
table of primitives.
"""

from coterie.compute import numpy as _methods  # noqa: F401  # pyright: ignore[reportUnusedImport]  the array's
from coterie.compute.array_type import Array as Array
from coterie.compute.array_type import ArrayLike as ArrayLike
from coterie.compute.array_type import as_array as as_array
from coterie.compute.array_type import bind as bind
from coterie.compute.array_type import bind_all as bind_all
from coterie.compute.array_type import promote as promote
from coterie.compute.array_type import refuse as refuse
