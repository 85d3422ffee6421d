"""Ids of rows: texts, normalised by rules that both parties state, and one sequence of bytes for each row.

Rules are a closed set, and are followed in the order of `RULES`, however they are named. No error of this module says
an id: only columns, and how many.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from coterie import errors

RULES: Final[Mapping[str, Callable[[str], str]]] = {
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "strip": str.strip,
    "spaces": lambda text: " ".join(text.split()),
    "casefold": lambda text: unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold()),
    "alphanumeric": lambda text: "".join(filter(str.isalnum, text)),
    "digits": lambda text: "".join(filter(str.isdecimal, text)),
}
"""Each takes a text and returns one. ``nfc``: Unicode's composed form; ``nfkc``: also without compatibility forms, such
as wide letters; ``strip``: no space at the ends; ``spaces``: one space for several; ``casefold``: no difference between
capital and small letters; ``alphanumeric``: only letters and digits; ``digits``: only digits.
"""
DEFAULT_RULES: Final = ("nfc", "strip", "casefold")


def ordered_rules(rules: Collection[str]) -> tuple[str, ...]:
    """Rules in the order in which they are followed. Raises errors.ArgumentValueError (``ids_rules``) for others."""
    if isinstance(rules, str):
        rules = (rules,)
    unknown = next((rule for rule in rules if rule not in RULES), None)
    if unknown is not None:
        near = errors.nearest(unknown, RULES)
        raise errors.ArgumentValueError(
            f"There is no rule {unknown[:64]!r} for ids.",
            hint=f"Did you mean {near}?" if near else f"The rules are {', '.join(RULES)}.",
            code="ids_rules",
        )
    return tuple(rule for rule in RULES if rule in rules)


def normal_ids(columns: Mapping[str, Sequence[Any] | NDArray[Any]], rules: Collection[str], source: str) -> list[bytes]:
    """The id of each row, as bytes that are the same for the same normalised texts, and for no others.

    columns: by name, the cells of one row at one place of each; texts or whole numbers.
    rules: see `RULES`.
    source: what messages call where they are from.
    Raises errors.DataError (``ids_missing``, ``ids_repeated``, ``ids_kind``, ``data_empty``) with columns and counts.
    """
    followed = [RULES[rule] for rule in ordered_rules(rules)]
    texts = {name: [_normal(text, followed) for text in _texts(name, cells, source)] for name, cells in columns.items()}
    lengths = {len(cells) for cells in texts.values()}
    if len(lengths) > 1:
        counted = ", ".join(f"{name} {len(cells)}" for name, cells in texts.items())
        raise errors.DataError(
            f"{source}: the id columns have different lengths: {counted}.",
            hint="Give one cell a row in each.",
            code="ids_kind",
        )
    if not lengths or not max(lengths):
        raise errors.DataError(f"{source}: there are no rows.", hint="Add at least one.", code="data_empty")
    for name, cells in texts.items():
        missing = sum(not cell for cell in cells)
        if missing:
            raise errors.DataError(
                f"{source}: {missing} of {len(cells)} rows have no id in column {name!r}"
                + (f" after the rules {', '.join(ordered_rules(rules))}." if rules else "."),
                hint="Drop these rows or complete them: a row without an id is nobody's.",
                code="ids_missing",
                column=name,
                rows=missing,
            )
    found = [_joined(row) for row in zip(*texts.values(), strict=True)]
    repeated = sum(count for count in Counter(found).values() if count > 1)
    if repeated:
        named = " and ".join(repr(name) for name in columns)
        raise errors.DataError(
            f"{source}: {repeated} of {len(found)} rows share their id with another row, in the column"
            f"{'s' * (len(columns) > 1)} {named}.",
            hint="Keep one row an id, or name a further column that tells them apart. Rules may make ids equal that "
            "are written differently.",
            code="ids_repeated",
            column=next(iter(columns)),
            rows=repeated,
        )
    return found


def _joined(texts: tuple[str, ...]) -> bytes:
    """Texts as bytes, each after its length, so that no other texts give the same."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _normal(text: str, rules: Sequence[Callable[[str], str]]) -> str:
    for rule in rules:
        text = rule(text)
    return text


def _texts(name: str, cells: Sequence[Any] | NDArray[Any], source: str) -> list[str]:
    """Cells as texts; nothing for what is none."""
    array: Any = cells
    if isinstance(cells, np.ndarray):
        array = cast(Any, cells)
        if array.ndim != 1 or array.dtype.kind not in "iuUO":
            raise _of_other_kind(name, f"{array.dtype}{list(array.shape)}", source)
        array = array.tolist()
    return [_text(name, cell, source) for cell in array]


def _text(name: str, cell: object, source: str) -> str:
    match cell:
        case str():
            return cell
        case bool() | np.bool_():
            raise _of_other_kind(name, "truth values", source)
        case int() | np.integer():
            return str(cell)
        case None:
            return ""
        case float() if cell != cell:
            return ""
        case _ if type(cell).__name__ == "NAType":  # of pandas, which is not imported for it
            return ""
        case _:
            raise _of_other_kind(name, f"{type(cell).__name__} values", source)


def _of_other_kind(name: str, what: str, source: str) -> errors.DataError:
    return errors.DataError(
        f"{source}: the id column {name!r} holds {what}, and ids are texts or whole numbers.",
        hint="Read the column as text: a number with a point may have lost digits or zeros on its way.",
        code="ids_kind",
        column=name,
    )
