"""Texts of the form ``name(number, ...)``: ``krum(2)``, ``oort(0.5, seconds=30)``, ``batched(16)``, ``average(5)``.

One grammar for every text in which a rule is named with its numbers:

    call   = name [ "(" [ item { "," item } ] ")" ]
    item   = [ name "=" ] number
    name   = lower-case letters and "_"
    number = digits [ "." digits ] [ "e" [ sign ] digits ]

Numbers come by position or by name. Spaces around items do not count.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie import errors

Refuse = Callable[[str], errors.CoterieError]
"""Makes the caller's error from the reason, a sentence without its capital and full stop."""

_CALL = re.compile(r"([a-z_]+)(?:\(([^()]*)\))?")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


@dataclass(frozen=True)
class Parameter:
    """A number that a rule takes.

    name: by which it can be given.
    least, most: its bounds, both allowed.
    default: None when it must be given.
    whole: whether it is a whole number.
    """

    name: str
    least: float
    default: float | None = None
    whole: bool = True
    most: float = math.inf

    def read(self, text: str, rule: str, refuse: Refuse) -> float:
        """The number that the text says. Raises the caller's error outside of the bounds."""
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not (math.isfinite(value) and self.least <= value <= self.most) or (self.whole and value != int(value)):
            kind = "a whole number" if self.whole else "a number"
            bound = "" if self.most == math.inf else f" and at most {self.most:g}"
            raise refuse(f"{rule} needs {self.name} to be {kind} of at least {self.least:g}{bound}, not {text[:32]!r}")
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Call:
    """A rule's name with all its numbers, in the order of its parameters; those not given have their default."""

    name: str
    numbers: Mapping[str, float]

    @property
    def text(self) -> str:
        """The call with all numbers by position: equal calls have equal texts."""
        inside = ",".join(repr(number) for number in self.numbers.values())
        return f"{self.name}({inside})" if inside else self.name


def name_of(text: str) -> str | None:
    """The name in a call; None for a text of another form."""
    match = _CALL.fullmatch(text.strip())
    return None if match is None else match[1]


def read_call(text: str, rules: Mapping[str, tuple[Parameter, ...]], refuse: Refuse) -> Call:
    """The call that a text says.

    rules: by name, the parameters that a rule takes.
    refuse: makes the error of a text that cannot be read: another form, a name that is not in ``rules``, too many
        numbers, unknown, doubled or missing ones, or one out of bounds.
    """
    match = _CALL.fullmatch(text.strip())
    if match is None:
        raise refuse(f"{text[:64]!r} is not of the form name or name(number, ...)")
    name = match[1]
    if name not in rules:
        raise refuse(f"there is no {name[:64]!r}; there are {', '.join(rules)}")
    return Call(name, _numbers(name, rules[name], match[2] or "", refuse))


def _numbers(rule: str, parameters: tuple[Parameter, ...], inside: str, refuse: Refuse) -> Mapping[str, float]:
    names = [parameter.name for parameter in parameters]
    texts: dict[str, str] = {}
    for place, item in enumerate(inside.split(",") if inside.strip() else ()):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if not equals:
            if place >= len(parameters):
                raise refuse(
                    f"{rule} takes no more numbers than {', '.join(names)}" if names else f"{rule} takes no number"
                )
            key, value = names[place], key
        if key not in names or key in texts:
            raise refuse(f"{rule} has no parameter {key[:32]!r} or has it twice; it takes {', '.join(names) or 'none'}")
        texts[key] = value
    numbers: dict[str, float] = {}
    for parameter in parameters:
        if parameter.name in texts:
            numbers[parameter.name] = parameter.read(texts[parameter.name], rule, refuse)
        elif parameter.default is None:
            raise refuse(f"{rule} needs {parameter.name}, as in {rule}({max(parameter.least, 1):g})")
        else:
            numbers[parameter.name] = parameter.default
    return numbers
