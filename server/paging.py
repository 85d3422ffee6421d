"""Cursors: opaque to clients, the last key of a page to us."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from fastapi import Query

from coterie.errors import InputError
from coterie.protocol.control import LONGEST_CURSOR, Page

Row = TypeVar("Row")
View = TypeVar("View")
# What SQL keeps in an integer column is larger than any number that a coordinator ever counts to.
NUMBER = re.compile(r"[0-9]{1,18}")
PageLimit = Annotated[int, Query(ge=1, le=1000, description="The most items of one page.")]
PageCursor = Annotated[str | None, Query(max_length=LONGEST_CURSOR, description="The next_cursor of the page before.")]


def after(cursor: str | None) -> str | None:
    """The key that a page continues after."""
    if cursor is None:
        return None
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        raise InputError(
            "The cursor is not from this coordinator.", hint="Start without a cursor.", code="cursor_invalid"
        ) from None


def number_after(cursor: str | None, first: int) -> int:
    """The number that a page continues after."""
    text = after(cursor)
    if text is None:
        return first
    if NUMBER.fullmatch(text) is None:
        raise InputError(
            "The cursor is not from this coordinator.", hint="Start without a cursor.", code="cursor_invalid"
        )
    return int(text)


def page(rows: Sequence[Row], limit: int, key: Callable[[Row], object], views: Sequence[View]) -> Page[View]:
    """One page; the caller asked the database for one row more than the limit, to know whether more follow."""
    more = len(rows) > limit
    cursor = base64.urlsafe_b64encode(str(key(rows[limit - 1])).encode()).decode() if more else None
    return Page[View](items=tuple(views[:limit]), next_cursor=cursor)


def instant(milliseconds: int) -> datetime:
    """A time of a row as an instant in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def maybe_instant(milliseconds: int | None) -> datetime | None:
    """A time of a row that may not have come yet."""
    return None if milliseconds is None else instant(milliseconds)
