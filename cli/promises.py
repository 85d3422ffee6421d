"""What a command says of who will see what, before anything runs."""

from typing import TYPE_CHECKING, Any

from coterie.cli.output import Output

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment

_HOW = {
    "open": "in the open",
    "semi_honest": "secure, semi_honest",
    "consistent": "secure, consistent",
    "groups": "secure, in groups",
}


def promise(output: Output, experiment: "Experiment") -> None:
    """How updates are aggregated, what that promises, and the first thing that it does not. Programs find it whole in
    the command's last event (`promised`)."""
    if output.json:
        return
    from coterie.aggregation.promises.drowned import drowned
    from coterie.aggregation.promises.promises import PROMISES, mode_of, too_small

    mode = mode_of(experiment)
    found = PROMISES[mode]
    output.say(
        f"Aggregation on a coordinator: {_HOW[mode]} (docs/security.md states what it does and does not promise)"
    )
    for sentence in found.promises:
        output.say(f"  + {sentence}")
    output.say(f"  - {found.does_not[0]}")
    for sentence in (too_small(experiment), drowned(experiment)):
        if sentence is not None:
            output.say(f"  - {sentence}")


def promised(experiment: "Experiment") -> dict[str, Any]:
    """The same for programs, whole."""
    from coterie.aggregation.promises.promises import lines, mode_of

    return {"aggregation": mode_of(experiment), "promises": lines(experiment)}
