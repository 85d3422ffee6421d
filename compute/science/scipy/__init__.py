"""A little of SciPy on coterie's arrays: ``special``, ``linalg`` and ``optimize``, differentiable and traceable.

What is not here has no portable ONNX form (factorisations, sparse matrices, signal processing); asking for it says so.
"""

from coterie.compute.science.scipy import linalg as linalg
from coterie.compute.science.scipy import optimize as optimize
from coterie.compute.science.scipy import special as special
