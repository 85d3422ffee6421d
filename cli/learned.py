"""A table of who learned what in a session."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from coterie.cli.output import Output, size

if TYPE_CHECKING:
    from coterie.protocol.disclosures import Disclosure
    from coterie.protocol.session_report import SessionReport

_COLUMNS: Final = ("stage", "step", "learned by", "of", "what", "how much", "messages", "claim")


def show_learned(output: Output, reports: "Sequence[SessionReport]") -> None:
    """One row, and one event ``learned``, for each thing that a role told another."""
    from coterie.protocol.disclosures import KINDS
    from coterie.protocol.learned import learned

    rows: list[tuple[object, ...]] = []
    kinds: dict[str, str] = {}
    for row in learned(reports):
        told = row.disclosure
        output.event(
            "learned",
            stage=row.stage,
            **told.model_dump(mode="json"),
            done=row.is_done,
            messages=row.messages,
            bytes=row.size,
        )
        kind = told.kind.replace("_", " ")
        kinds[kind] = KINDS[told.kind]
        rows.append(
            (
                row.stage,
                told.step if row.is_done else f"{told.step} (not done)",
                told.recipient,
                told.sender,
                f"{kind} ({told.key})" if told.key else kind,
                _amount(told),
                f"{row.messages} ({size(row.size)})",
                told.claim.replace("_", "-"),
            )
        )
    output.table(_COLUMNS, rows, empty="Nothing was told in this session.")
    for kind, meaning in kinds.items():
        output.say(f"{kind}: {meaning}.")


def _amount(told: "Disclosure") -> str | None:
    """How many numbers of how many rows, how often."""
    numbers = f"{told.numbers} a row" if told.numbers else ""
    rows = "" if told.rows is None else f"{told.rows} rows"
    times = f"{told.times} times" if told.times > 1 else ""
    return ", ".join(part for part in (numbers, rows, times) if part) or None
