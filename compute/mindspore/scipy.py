"""``mindspore.scipy``: ``linalg``, ``optimize`` and ``special`` of coterie."""

from coterie.compute.scipy import linalg as linalg
from coterie.compute.scipy import optimize as optimize
from coterie.compute.scipy import special as special
