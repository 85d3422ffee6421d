"""A little of SciPy on coterie's arrays: ``special``, ``linalg`` and ``optimize``, differentiable and traceable.

Factorisations are functions of the host, as in ``coterie.compute.linalg``. What is not here (sparse matrices, signal
processing) has no portable ONNX form; asking for it says so.
"""

from coterie.compute.science.scipy import linalg as linalg
from coterie.compute.science.scipy import optimize as optimize
from coterie.compute.science.scipy import special as special
