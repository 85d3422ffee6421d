"""Who learned what in a session, as one or several reports of it tell."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from coterie.protocol.disclosures import Disclosure
from coterie.protocol.session_report import ReportedStep, SessionReport


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One thing that one role told another.

    is_done: whether the step came to its end in all reports that have it.
    messages, size: of all messages of the step from the one to the other, and their sealed bytes.
    """

    stage: str
    disclosure: Disclosure
    is_done: bool
    messages: int
    size: int


def learned(reports: Iterable[SessionReport]) -> list[Learned]:
    """What was told, step by step; what several reports tell of one thing is there once, as the one says it that knows
    most.
    """
    found: dict[tuple[str, str], dict[bytes, list[Learned]]] = {}
    for report in reports:
        for step in report.steps:
            of_step = found.setdefault((step.stage, step.step), {})
            for told in step.disclosures:
                row, rows = _row(step, told), of_step.setdefault(told.subject, [])
                place = next((at for at, each in enumerate(rows) if each.disclosure.agrees_with(told)), None)
                if place is None:
                    rows.append(row)
                else:
                    rows[place] = _merged(rows[place], row)
    return [row for of_step in found.values() for rows in of_step.values() for row in rows]


def _row(step: ReportedStep, told: Disclosure) -> Learned:
    passed = [each for each in step.traffic if (each.sender, each.recipient) == (told.sender, told.recipient)]
    messages, size = sum(each.messages for each in passed), sum(each.size for each in passed)
    return Learned(stage=step.stage, disclosure=told, is_done=step.is_done, messages=messages, size=size)


def _merged(one: Learned, other: Learned) -> Learned:
    more = other.disclosure if other.disclosure.says_more_than(one.disclosure) else one.disclosure
    return replace(
        one,
        disclosure=more,
        is_done=one.is_done and other.is_done,
        messages=max(one.messages, other.messages),
        size=max(one.size, other.size),
    )
