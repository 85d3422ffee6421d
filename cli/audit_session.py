"""`coterie audit session`: the reports of a session's parties against their pinned keys and against one another."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.failures import CANNOT_TELL, FAILED
from coterie.cli.output import JsonOption, Output


def audit_session(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Reports that `coterie party report --out` wrote; one a role."),
    ],
    pin: Annotated[
        list[str] | None, typer.Option("--pin", metavar="PARTY=FINGERPRINT", help="A party's key, told by itself.")
    ] = None,
    partners: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A party's list of pins, `partners.json` of its folder.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say who learned what in a session, by its parties' signed reports, and whether these agree.

    Exits with 1 where they differ or a signature does not hold, and names the difference; with 6 where nothing differs
    and something could not be compared.
    """
    from dataclasses import asdict

    from coterie.cli.learned import show_learned
    from coterie.client_sdk.party.pins import read_fingerprint, read_pins
    from coterie.protocol.report_audit import audit_reports
    from coterie.protocol.session_report import MOST_BYTES, SessionReport, read_report

    output = Output(json)
    pins = {} if partners is None else dict(read_pins(partners))
    for text in pin or ():
        party, _, told = text.rpartition("=")
        pins[party] = read_fingerprint(told)
    reports: list[SessionReport] = []
    for path in files:
        with path.open("rb") as file:
            reports.append(read_report(file.read(MOST_BYTES + 1), str(path)))
    found = audit_reports(reports, pins)
    show_learned(output, reports)
    for report in reports:
        output.say(
            f"{report.party} (role {report.role}): {'the session was over' if report.is_final else 'not final'}."
        )
    for finding in found.faults:
        output.say(f"DIFFERENT: {finding.text}")
    for finding in found.open:
        output.say(f"OPEN: {finding.text}")
    output.event(
        "session_audit",
        session=reports[0].terms.session,
        roles=[report.role for report in reports],
        verdict=found.verdict,
        faults=[asdict(finding) for finding in found.faults],
        open=[asdict(finding) for finding in found.open],
    )
    match found.verdict:
        case "agree":
            output.say("AGREE: the signatures hold, and what each says that it sent, the other says that it got.")
        case "differ":
            raise typer.Exit(FAILED)
        case "cannot tell":
            output.say("CANNOT TELL: what could be compared agrees.")
            raise typer.Exit(CANNOT_TELL)
