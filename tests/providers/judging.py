"""What a proof means beside the list of what was proved before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

State: TypeAlias = Literal["proved", "failed", "regressed", "not tried"]
MOST_LINES = 5


@dataclass(frozen=True)
class Judgement:
    """state: "failed" where nothing better was ever proved, "regressed" where it was. lines: for people."""

    name: str
    state: State
    lines: tuple[str, ...]


def judged(name: str, before: Mapping[str, Any] | None, found: Mapping[str, Any] | None, why: str) -> Judgement:
    """before: what the list has of this environment; found: what was found now, or None, and ``why`` nothing was tried.

    A regression is a failure where the list has a proof, and a proof of less: fewer recipes, graphs, trainings or files
    of a kind, or a recipe that needs the CPU's help and did not before.
    """
    if found is None:
        return Judgement(name, "not tried", (f"not tried: {why}",))
    if not found["proved"]:
        wrong = list(found["wrong"])
        shown = [*wrong[:MOST_LINES], *([f"and {len(wrong) - MOST_LINES} more"] if len(wrong) > MOST_LINES else [])]
        return Judgement(name, "regressed" if before else "failed", ("FAILED", *shown))
    less = _less(before or {}, found)
    files = ", ".join(f"{count} of {kind}" for kind, count in found["files"].items())
    told = (
        f"proved: {found['provider']} {found['version']} on {found['driver']}",
        f"{found['agrees']} recipes alone, {len(found['declined'])} with the CPU's help"
        + (f" ({', '.join(found['declined'])})" if found["declined"] else ""),
        f"{found['graphs']} graphs of plans, {found['whole']} of them without the CPU; {found['trainings']} trainings",
        f"files beside plans: {files or 'none tried'}",
        f"recipes in {found['seconds']['recipes']} s, all in {found['seconds']['all']} s",
        *(
            f"a step of {model}: {own} ms, on the CPU {cpu} ms, {cpu / own:.1f} times as long"
            for model, (cpu, own) in found["steps"].items()
        ),
    )
    if less:
        return Judgement(name, "regressed", (*told, *(f"LESS than proved before: {each}" for each in less)))
    return Judgement(name, "proved", told if before else (*told, "new: --record writes it down"))


def _less(before: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    less = [
        f"{count} was {before[count]}, is {found[count]}"
        for count in ("agrees", "graphs", "whole", "trainings")
        if before.get(count, 0) > found[count]
    ]
    less += [
        f"{kind} was {count}, is {found['files'].get(kind, 0)}"
        for kind, count in before.get("files", {}).items()
        if count > found["files"].get(kind, 0)
    ]
    fresh = sorted(set(found["declined"]) - set(before["declined"])) if before else []
    return less + [f"{recipe!r} needs the CPU's help now" for recipe in fresh]
