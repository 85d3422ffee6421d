"""Who learned what in a session, in lines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.cli.output import Output, size

if TYPE_CHECKING:
    from coterie.protocol.disclosures import Disclosure
    from coterie.protocol.learned import Learned
    from coterie.protocol.session_report import SessionReport


def show_learned(output: Output, reports: "Sequence[SessionReport]") -> None:
    """One line, and one event ``learned``, for each thing that a role told another, by step and direction."""
    from coterie.protocol.disclosures import CLAIMS, KINDS
    from coterie.protocol.learned import learned

    rows = learned(reports)
    for row in rows:
        output.event(
            "learned",
            stage=row.stage,
            **row.disclosure.model_dump(mode="json"),
            done=row.is_done,
            messages=row.messages,
            bytes=row.size,
        )
    ways: dict[tuple[str, str, str, str], list[Learned]] = {}
    for row in rows:
        told = row.disclosure
        ways.setdefault((row.stage, told.step, told.recipient, told.sender), []).append(row)
    for (stage, step, recipient, sender), of_way in ways.items():
        broken_off = "" if of_way[0].is_done else " (not done)"
        messages = f"messages: {of_way[0].messages}, {size(of_way[0].size)}"
        output.say(f"Stage {stage}, step {step}{broken_off}: {recipient} learned of {sender} ({messages})")
        for row in of_way:
            output.say(f"  {_thing(row.disclosure)}")
    if not rows:
        output.say("Nothing was told in this session.")
    told = [row.disclosure for row in rows]
    for line in dict.fromkeys(f"{_words(each.kind)}: {KINDS[each.kind]}." for each in told):
        output.say(line)
    for line in dict.fromkeys(f"{_words(each.claim, '-')}: {CLAIMS[each.claim]}." for each in told):
        output.say(line)


def _thing(told: "Disclosure") -> str:
    amount = _amount(told)
    key = f" ({told.key})" if told.key else ""
    return f"{_words(told.kind)}{key}{f', {amount}' if amount else ''}; {_words(told.claim, '-')}"


def _words(name: str, between: str = " ") -> str:
    return name.replace("_", between)


def _amount(told: "Disclosure") -> str | None:
    """How many numbers of how many rows, how often."""
    numbers = f"{told.numbers} a row" if told.numbers else ""
    rows = "" if told.rows is None else f"{told.rows} rows"
    times = f"{told.times} times" if told.times > 1 else ""
    return ", ".join(part for part in (numbers, rows, times) if part) or None
