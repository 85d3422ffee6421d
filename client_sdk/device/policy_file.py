"""A device's policy as a TOML file: the names of `DevicePolicy`, one a line, and the table ``[plan]`` of `PlanLimits`.

    require_secure_aggregation = true
    min_cohort = 20
    max_epsilon = 8.0

A line that is left out keeps its default. Nothing in the file is passed over in silence: a name that does not exist, a
value of the wrong kind or out of range, and a line that can have no effect are refused (``policy_file``) with the line
and what to write instead, because a floor that is misspelt is no floor.
"""

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from coterie.client_sdk.device.policy import (
    ALL_MODES,
    ALL_TRUSTED,
    ALL_UNITS,
    CONSISTENT,
    NEED_SECRECY,
    DevicePolicy,
    PolicySource,
    unfit_modes,
)
from coterie.compute.runtime.spread.asked import read_parallel
from coterie.errors import ConfigurationError, nearest

LARGEST_FILE: Final = 1 << 16
_KEY: Final = re.compile(r"^[0-9a-f]{64}$")
_PROVIDER: Final = re.compile(r"[A-Za-z0-9_]{1,64}\Z")


@dataclass(frozen=True)
class PolicyLineRule:
    """What a line may say.

    expected: completes "must be …".
    read: the value as `DevicePolicy` has it, or None if it is not what is wanted.
    """

    expected: str
    read: Callable[[object], object | None]


def _parallel(value: object) -> object | None:
    if not isinstance(value, str):
        return None
    try:
        read_parallel(value, threads=1)
    except ConfigurationError:
        return None
    return value


def _boolean(value: object) -> object | None:
    return value if isinstance(value, bool) else None


def _integer_rule(least: int) -> PolicyLineRule:
    def read(value: object) -> object | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return value if fits else None

    return PolicyLineRule(f"a whole number of at least {least}, without quotes", read)


def _number(value: object, *, below: float) -> object | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < below else None


def _names(value: object, fits: Callable[[str], bool]) -> object | None:
    if not isinstance(value, list):
        return None
    names = cast(list[object], value)
    if not names or not all(isinstance(name, str) and fits(name) for name in names):
        return None
    return frozenset(cast(list[str], names))


def _choice_rule(allowed: Sequence[str]) -> PolicyLineRule:
    return PolicyLineRule(
        f"a list of one or more of {', '.join(repr(name) for name in allowed)}",
        lambda value: _names(value, allowed.__contains__),
    )


_FLAG: Final = PolicyLineRule("true or false, in lower case and without quotes", _boolean)
_LIMIT: Final = _integer_rule(1)

RULES: Final[Mapping[str, PolicyLineRule]] = {
    "require_secure_aggregation": _FLAG,
    "min_cohort": _integer_rule(2),
    "min_corrupt": PolicyLineRule(
        "a number of at least 0 and below 1, without quotes, as in 0.1",
        lambda value: 0.0 if value == 0 and not isinstance(value, bool) else _number(value, below=1.0),
    ),
    "modes": _choice_rule(ALL_MODES),
    "min_endorsed": _integer_rule(2),
    "endorsers": PolicyLineRule(
        "a list of one or more public keys of 64 lower-case hexadecimal digits",
        lambda value: _names(value, lambda name: _KEY.match(name) is not None),
    ),
    "max_epsilon": PolicyLineRule(
        "a number above 0, without quotes, as in 8.0", lambda value: _number(value, below=math.inf)
    ),
    "max_delta": PolicyLineRule(
        "a number between 0 and 1, without quotes, as in 1e-5", lambda value: _number(value, below=1.0)
    ),
    "units": _choice_rule(ALL_UNITS),
    "trusts": _choice_rule(ALL_TRUSTED),
    "ledger": PolicyLineRule(
        'the path of a file in quotes, as in "/var/lib/coterie/ledger.db"',
        lambda value: Path(value) if isinstance(value, str) and value.strip() else None,
    ),
    "signers": PolicyLineRule(
        "a list of one or more public keys of 64 lower-case hexadecimal digits; leave the line out to trust the"
        " population's signers as they were when this device joined",
        lambda value: _names(value, lambda name: _KEY.match(name) is not None),
    ),
    "threads": _LIMIT,
    "memory_bytes": _LIMIT,
    "max_upload_bytes": _LIMIT,
    "max_download_bytes": _LIMIT,
    "max_weight": _LIMIT,
    "max_steps": _LIMIT,
    "reveal_data": _FLAG,
    "provider": PolicyLineRule(
        'the name of an execution provider in quotes, as in "cpu", "openvino" or "auto"',
        lambda value: value if isinstance(value, str) and _PROVIDER.match(value) else None,
    ),
    "parallel": PolicyLineRule(
        'the number of processes in quotes, as in "data(2)" or "pipeline(2)", or "auto"',
        _parallel,
    ),
}

PLAN_RULES: Final[Mapping[str, PolicyLineRule]] = {
    "manifest_bytes": _LIMIT,
    "parameters": _LIMIT,
    "state": _LIMIT,
    "graph_bytes": _LIMIT,
}


def read_policy(path: Path) -> DevicePolicy:
    """The policy that a file states.

    The policy remembers the file's name and lines, so a refusal of a task can say which line refuses it.
    Raises ConfigurationError (``policy_file``).
    """
    text = _text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _error(
            path, None, f"this is not TOML: {error}", "Write one `name = value` per line, with text in quotes."
        ) from error
    if not document:
        raise _error(
            path,
            None,
            "the file is empty, so it would enforce nothing",
            "Write at least one rule, for example: require_secure_aggregation = true",
        )
    lines = _lines(text)
    plan = document.pop("plan", {})
    if not isinstance(plan, dict):
        raise _error(path, lines.get("plan"), "plan is a table, not a value", "Write [plan] and its names below it.")
    values = _values(path, document, RULES, lines, "")
    for name in ("max_delta", "units", "trusts", "ledger"):
        if name in values and "max_epsilon" not in values:
            raise _error(
                path,
                lines.get(name),
                f"{name} has no effect without max_epsilon",
                "Add max_epsilon, for example: max_epsilon = 8.0",
            )
    for name, other in (("min_endorsed", "endorsers"), ("endorsers", "min_endorsed")):
        if name in values and other not in values:
            raise _error(path, lines.get(name), f"{name} has no effect without {other}", f"Add a line {other} = ….")
    needs = next((name for name in NEED_SECRECY if name in values), None)
    if needs is not None and values.get("require_secure_aggregation") is False:
        raise _error(
            path,
            lines.get("require_secure_aggregation"),
            f"require_secure_aggregation cannot be false beside {needs} in line {lines.get(needs)}, which only "
            "secure aggregation can enforce",
            f"Leave out one of the two: without {needs} this client also sends updates that the coordinator reads.",
        )
    if "min_endorsed" in values and values.get("modes", CONSISTENT) != CONSISTENT:
        raise _error(
            path,
            lines.get("modes"),
            "modes cannot name semi_honest together with min_endorsed: in that mode a client sees its neighbours only",
            'Write modes = ["consistent"], or leave the line out.',
        )
    if "ledger" in values:
        values["ledger"] = path.absolute().parent / values["ledger"]
    if "modes" in values and "trusts" in values and (why := unfit_modes(values["modes"], values["trusts"])) is not None:
        raise _error(
            path,
            lines.get("modes"),
            f"modes cannot name semi_honest: {why}",
            f'Write modes = ["consistent"], or leave the line out; or add "coordinator" to trusts in line '
            f"{lines.get('trusts')}.",
        )
    limits = _values(path, cast(dict[str, object], plan), PLAN_RULES, lines, "plan.")
    base = DevicePolicy()
    graph_bytes = limits.pop("graph_bytes", base.plan.graph.graph_bytes)
    graph = replace(base.plan.graph, graph_bytes=graph_bytes)
    return replace(
        base, plan=replace(base.plan, graph=graph, **limits), source=PolicySource(file=path.name, lines=lines), **values
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise _error(path, None, "there is no such file", "Check the path given as --policy.") from None
    except IsADirectoryError:
        raise _error(path, None, "this is a folder", "Name the file in it, for example policy.toml.") from None
    except OSError as error:
        raise _error(path, None, f"it cannot be read: {error.strerror}", "Check the file's permissions.") from error
    if len(data) > LARGEST_FILE:
        raise _error(path, None, f"it has more than {LARGEST_FILE} bytes", "Is this the policy?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _error(
            path, line, "this is not UTF-8 text", "Save the file as UTF-8 without a byte-order mark."
        ) from None


def _values(
    path: Path, table: Mapping[str, object], rules: Mapping[str, PolicyLineRule], lines: Mapping[str, int], prefix: str
) -> dict[str, Any]:
    """What a table says, checked by its rules."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        line = lines.get(prefix + name)
        if name not in rules:
            raise _unknown(path, line, name, value, rules, prefix)
        read = rules[name].read(value)
        if read is None:
            raise _error(
                path, line, f"{name} must be {rules[name].expected}; it is {_format(value)}", "Correct the line."
            )
        values[name] = read
    return values


def _unknown(
    path: Path, line: int | None, name: str, value: object, rules: Mapping[str, PolicyLineRule], prefix: str
) -> ConfigurationError:
    if isinstance(value, dict):
        inside = ", ".join(list(cast(dict[str, object], value))[:4])
        return _error(
            path,
            line,
            f"there is no table [{name}]",
            f"Write its lines ({inside}) at the top of the file, before any table." if inside else "Remove it.",
        )
    elsewhere = RULES if prefix else PLAN_RULES
    if name in elsewhere:
        return _error(
            path,
            line,
            f"{name} is in the wrong place",
            "Move it above the line [plan]." if prefix else "Move it below a line [plan].",
        )
    near = nearest(name, rules)
    hint = f"Did you mean {near}?" if near else f"These exist: {', '.join(rules)}."
    return _error(path, line, f"there is no rule {prefix}{name}", hint)


def _lines(text: str) -> dict[str, int]:
    """Where each name stands: ``name`` or ``table.name`` → line, counted from 1. The first mention wins."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = header[1].strip("\"'") + "."
            lines.setdefault(table[:-1], number)
        elif name := re.match(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*=", line):
            lines.setdefault(table + name[1], number)
    return lines


def _format(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'the text "{value[:80]}"'
        case list():
            shown = ", ".join(_format(item) for item in cast(list[object], value)[:4])
            return f"the list [{shown}]"
        case dict():
            return "a table"
        case _:
            return str(value)


def _error(path: Path, line: int | None, what: str, hint: str) -> ConfigurationError:
    where = f"{path}, line {line}" if line else str(path)
    return ConfigurationError(f"{where}: {what}.", hint=hint, code="policy_file")
