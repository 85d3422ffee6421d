"""Which columns a plan may read: the names that its role allows, held against whatever the loading reads."""

from collections.abc import Collection, Iterable

from coterie.errors import ArgumentTypeError, PlanRefused
from coterie.protocol.schema import DataSchema


def check_readable(schema: DataSchema, allowed: Collection[str]) -> None:
    """Return only if each feature and the label can be read from what is allowed: whole by its name, or by its columns.

    Which of the two a source has is known when it is read: `require_allowed` looks then.
    Raises PlanRefused (``plan_columns``), ArgumentTypeError for a text in place of names.
    """
    if isinstance(allowed, str):
        raise ArgumentTypeError(f"columns are names, as in columns=({allowed!r},).")
    wanted = [(feature.name, feature.columns) for feature in schema.features]
    if schema.label.constant is None:
        wanted.append((schema.label.name, schema.label.sources))
    for name, columns in wanted:
        if name not in allowed:
            require_allowed(columns or (name,), "this role's data", allowed)


def require_allowed(read: Iterable[str], source: str, allowed: Collection[str]) -> None:
    """Return only if all columns, arrays and files that were read for a schema are allowed.

    source: where they are, for the message.
    Raises PlanRefused (``plan_columns``).
    """
    surplus = [name for name in read if name not in allowed]
    if surplus:
        raise PlanRefused(
            f"The plan reads {', '.join(map(repr, surplus[:20]))} of {source}, which columns= does not allow.",
            hint="Allow them if your partners may learn of them, or ask whoever made the plan to leave them out.",
            code="plan_columns",
        )
