"""``mindspore.scipy``: ``linalg``, ``optimize`` and ``special`` of coterie."""

from coterie.compute.science.scipy import linalg as linalg
from coterie.compute.science.scipy import optimize as optimize
from coterie.compute.science.scipy import special as special
