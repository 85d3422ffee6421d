"""Sums of products in index notation, compiled to transpositions, sums and matrix products."""

from collections.abc import Sequence
from math import prod
from typing import NoReturn

from coterie.compute.array_type import Array, ArrayLike, bind, promote, refuse
from coterie.compute.numpy import reduction
from coterie.compute.numpy.creation import astype
from coterie.compute.numpy.linear import matmul
from coterie.compute.numpy.manipulation import permute_dims, reshape, slice_along
from coterie.compute.source import operation, user_source
from coterie.errors import InputError, ShapeError

# Axes behind an ellipsis get capital Greek letters, which no subscript may use.
_UNNAMED = "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ"


@operation
def einsum(subscripts: str, *operands: ArrayLike) -> Array:
    """NumPy's einsum of a string: "ij,jk->ik", also with an ellipsis, without an output (the letters that occur once,
    in alphabetical order), and with a letter twice in one operand (its diagonal).

    Operands are contracted from left to right, each pair by one matrix product. An axis of size 1 broadcasts. Raises
    InputError for subscripts that do not fit, ShapeError for sizes that differ.
    """
    if not operands:
        _refuse(subscripts, "there are no operands")
    arrays = promote("einsum", *operands)
    terms, output = _parse(subscripts, arrays)
    sizes = _sizes(terms, arrays)
    missing = [letter for letter in output if letter not in sizes]
    if missing:
        _refuse(subscripts, f"no operand has the axis {missing[0]!r} of the output")
    if len(set(output)) != len(output):
        _refuse(subscripts, "the output names a letter twice")
    factors = [_diagonals(array, term) for array, term in zip(arrays, terms, strict=True)]
    array, letters = factors[0]
    for index, (other, others) in enumerate(factors[1:], 1):
        wanted = set(output).union(*(term for _, term in factors[index + 1 :]))
        array, letters = _contract(array, letters, other, others, wanted)
    array, letters = _sum_out(array, letters, set(output))
    # An output letter that has size 1 everywhere was dropped with the axes that broadcast.
    order = [letters.index(letter) for letter in output if letter in letters]
    shape = tuple(sizes[letter] for letter in output)
    result = reshape(permute_dims(array, order), shape)
    return result if result.type.dtype == arrays[0].type.dtype else astype(result, arrays[0].dtype)


def _refuse(subscripts: str, reason: str) -> NoReturn:
    raise InputError(
        f"{user_source()}: einsum({subscripts!r}): {reason}.",
        hint='Write one letter for each axis, e.g. "ij,jk->ik", and an ellipsis for axes without names.',
    )


def _parse(subscripts: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """The letters of every operand and of the output, ellipses written out."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(arrays):
        _refuse(subscripts, f"it names {len(parts)} operands, and {len(arrays)} are given")
    if any(
        not (letter.isascii() and letter.isalpha()) for letter in (left + right).replace("...", "").replace(",", "")
    ):
        _refuse(subscripts, "only letters, commas, one arrow and ellipses can be read")
    terms: list[str] = []
    unnamed = 0
    for part, array in zip(parts, arrays, strict=True):
        named = part.replace("...", "", 1)
        extra = array.ndim - len(named)
        if extra < 0 or (extra and named == part):
            _refuse(subscripts, f"{part!r} does not name the {array.ndim} axes of {array.type}")
        unnamed = max(unnamed, extra)
        terms.append(part.replace("...", _UNNAMED[len(_UNNAMED) - extra :], 1))
    ellipsis = _UNNAMED[len(_UNNAMED) - unnamed :]
    if arrow:
        if unnamed and "..." not in right:
            _refuse(subscripts, "the output lacks the ellipsis")
        return terms, right.replace("...", ellipsis, 1)
    letters = "".join(terms)
    once = sorted(letter for letter in set(letters) - set(_UNNAMED) if letters.count(letter) == 1)
    return terms, ellipsis + "".join(once)


def _sizes(terms: Sequence[str], arrays: Sequence[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, array in zip(terms, arrays, strict=True):
        for letter, size in zip(term, array.shape, strict=True):
            known = sizes.get(letter, 1)
            if known != size and 1 not in (known, size):
                reason = f"the axis {letter!r} has the sizes {known} and {size}."
                refuse(ShapeError, "einsum", arrays, reason, "Equal letters name axes of equal size (or 1).")
            sizes[letter] = size if known == 1 else known
    return sizes


def _diagonals(array: Array, term: str) -> tuple[Array, str]:
    """An operand in which every letter stands once, without axes of size 1."""
    while repeated := [letter for letter in term if term.count(letter) > 1]:
        first = term.index(repeated[0])
        second = term.index(repeated[0], first + 1)
        array = _diagonal(array, first, second)
        term = "".join(letter for i, letter in enumerate(term) if i not in (first, second)) + repeated[0]
    kept = "".join(letter for letter, size in zip(term, array.shape, strict=True) if size != 1)
    return reshape(array, tuple(size for size in array.shape if size != 1)), kept


def _diagonal(array: Array, first: int, second: int) -> Array:
    """The elements with equal positions on two axes, which move to the end as one."""
    others = [i for i in range(array.ndim) if i not in (first, second)]
    rows = tuple(array.shape[i] for i in others)
    n = max(array.shape[first], array.shape[second])
    matrix = bind("broadcast_to", permute_dims(array, (*others, first, second)), shape=(*rows, n, n))
    # Row-major, the diagonal is every (n + 1)-th element: the first column once a row is one longer.
    flat = reshape(matrix, (*rows, n * n))
    after = (0,) * len(rows)
    longer = bind("pad", flat, before=(*after, 0), after=(*after, n), value=0.0)
    return reshape(slice_along(reshape(longer, (*rows, n, n + 1)), len(rows) + 1, 0, 1), (*rows, n))


def _sum_out(array: Array, letters: str, wanted: set[str]) -> tuple[Array, str]:
    axes = tuple(i for i, letter in enumerate(letters) if letter not in wanted)
    kept = "".join(letter for letter in letters if letter in wanted)
    return (reduction.sum(array, axis=axes), kept) if axes else (array, kept)


def _contract(a: Array, a_letters: str, b: Array, b_letters: str, wanted: set[str]) -> tuple[Array, str]:
    """The product of two operands, summed over the letters that nothing else wants."""
    a, a_letters = _sum_out(a, a_letters, wanted | set(b_letters))
    b, b_letters = _sum_out(b, b_letters, wanted | set(a_letters))
    common = [letter for letter in a_letters if letter in b_letters]
    stacked = "".join(letter for letter in common if letter in wanted)
    summed = "".join(letter for letter in common if letter not in wanted)
    rows = "".join(letter for letter in a_letters if letter not in b_letters)
    columns = "".join(letter for letter in b_letters if letter not in a_letters)
    sizes = dict(zip(a_letters + b_letters, a.shape + b.shape, strict=True))

    def size(letters: str) -> int:
        return prod(sizes[letter] for letter in letters)

    def arranged(array: Array, letters: str, *groups: str) -> Array:
        return permute_dims(array, [letters.index(letter) for letter in "".join(groups)])

    stack = tuple(sizes[letter] for letter in stacked)
    left = reshape(arranged(a, a_letters, stacked, rows, summed), (*stack, size(rows), size(summed)))
    right = reshape(arranged(b, b_letters, stacked, summed, columns), (*stack, size(summed), size(columns)))
    product = matmul(left, right) if summed else left * right
    letters = stacked + rows + columns
    return reshape(product, tuple(sizes[letter] for letter in letters)), letters
