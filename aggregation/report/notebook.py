"""What a notebook shows of a run: its curves, and a line for each round."""

import csv
import io
from html import escape

from coterie.aggregation.report.hints import hints
from coterie.aggregation.report.panels import panels
from coterie.aggregation.report.run import ReportedRun
from coterie.aggregation.report.svg import svg

FIRST, LAST = 5, 20
"""Of more rounds than that together, so many lines are shown from both ends."""
_HIDDEN = ("bytes_up", "bytes_down", "model")


def notebook_html(history: ReportedRun) -> str:
    """The curves as SVG and the rounds as a table; hints and the reason for the end above.

    Text from the outside, such as names of metrics, is escaped.
    """
    if not len(history):
        return "<p>No round has ended yet.</p>"
    said = [f"{len(history)} rounds, {len(history.committed)} committed"]
    said += [f"ended: {history.reason}"] if history.reason else []
    notes = "".join(f"<p>{escape(hint)}</p>" for hint in hints(history))
    return f"<p>{escape('; '.join(said))}</p>{notes}{svg('', panels(history))}{_table(history)}"


def _table(history: ReportedRun) -> str:
    head, *lines = csv.reader(io.StringIO(history.to_csv()))
    shown = [at for at, name in enumerate(head) if name not in _HIDDEN and any(line[at] for line in lines)]
    rows = [_row("td", [_short_number(line[at]) for at in shown]) for line in lines]
    if len(rows) > FIRST + LAST:
        left = f'<tr><td colspan="{len(shown)}">… {len(rows) - FIRST - LAST} more rounds …</td></tr>'
        rows = [*rows[:FIRST], left, *rows[-LAST:]]
    return f"<table>{_row('th', [head[at] for at in shown])}{''.join(rows)}</table>"


def _row(cell: str, texts: list[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"


def _short_number(text: str) -> str:
    """A number with few digits; other text as it is."""
    try:
        return text if text.isdigit() else f"{float(text):.5g}"
    except ValueError:
        return text
