"""How clients join what was just submitted."""

from typing import TYPE_CHECKING, Any

from coterie.cli.output import Output

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control, Run


def joining(output: Output, control: "Control", run: "Run", population: str, url: str, **told: Any) -> str:
    """The command with which a client joins the population, with a new token; programs get the event ``submitted``,
    and `told` with it.
    """
    enrolment = control.enrolment_token(population)
    join = f"coterie client {url} --token {enrolment.token} --data YOUR_DATA"
    output.event(
        "submitted",
        experiment=run.id,
        name=run.name,
        population=population,
        url=url,
        token=enrolment.token,
        join=join,
        **told,
    )
    return join
