"""The header of an update: who made it, from what, and what its sections are."""

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from coterie import errors
from coterie.protocol.canonical import LARGEST_INTEGER

FORMAT = "coterie-update-1"
Kind = Literal["update", "accumulator"]
LONGEST_TEXT = 128
MOST_SECTIONS = 256


@dataclass(frozen=True)
class SectionEntry:
    """One section as the header lists it: its name, the codec of its payload, its number of elements."""

    name: str
    codec: str
    length: int


@dataclass(frozen=True, kw_only=True)
class UpdateHeader:
    """Who made an update from what. task, plan: ids; base: SHA-256 of the model version trained from; weight: examples
    that count; steps: local steps done. kind: an ``accumulator`` is what an edge aggregator made of the updates of
    `clients` clients: float64 sums, those of weighted means already multiplied by the weights, which add up to
    ``weight``. Raises errors.UpdateRefused (``bad_weight``, ``bad_steps``, ``bad_clients``).
    """

    task: str
    plan: str
    base: str
    weight: int
    steps: int
    sections: tuple[SectionEntry, ...]
    kind: Kind = "update"
    clients: int = 1

    def __post_init__(self) -> None:
        for name, value in (("weight", self.weight), ("steps", self.steps), ("clients", self.clients)):
            if not _is_whole(value):
                raise errors.UpdateRefused(
                    f"The {name} must be a whole number from 0 to 2**53 - 1; got {str(value)[:32]}.", code=f"bad_{name}"
                )
        if self.clients < 1 or (self.kind == "update" and self.clients != 1):
            raise errors.UpdateRefused(
                f"An {self.kind} of {self.clients} clients cannot be; an update is of one, an accumulator of one or "
                "more.",
                code="bad_clients",
            )

    def section(self, name: str) -> SectionEntry:
        """The entry of that name. Raises KeyError."""
        for entry in self.sections:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """``{"format", "kind", "task", "plan", "base", "weight", "steps", "clients", "sections": [{"name", "codec",
        "length"}]}``
        """
        return {
            "format": FORMAT,
            "kind": self.kind,
            "task": self.task,
            "plan": self.plan,
            "base": self.base,
            "weight": self.weight,
            "steps": self.steps,
            "clients": self.clients,
            "sections": [{"name": e.name, "codec": e.codec, "length": e.length} for e in self.sections],
        }

    @staticmethod
    def from_json(value: object) -> "UpdateHeader":
        """The inverse of `to_json`. Raises errors.UpdateRefused (``wrong_format``, ``bad_weight``, ``bad_steps``)."""
        fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        if fields.get("format") != FORMAT:
            raise _malformed(f"its format is {str(fields.get('format'))[:64]!r}, not {FORMAT!r}")
        expected = {"format", "kind", "task", "plan", "base", "weight", "steps", "clients", "sections"}
        if set(fields) != expected:
            raise _malformed(f"it must have exactly the fields {', '.join(sorted(expected))}")
        if fields["kind"] not in get_args(Kind):
            raise _malformed(f"its kind must be one of {', '.join(get_args(Kind))}")
        sections = fields["sections"]
        if not isinstance(sections, list) or not 0 < len(cast(list[object], sections)) <= MOST_SECTIONS:
            raise _malformed(f"it must list 1 to {MOST_SECTIONS} sections")
        return UpdateHeader(
            task=_text(fields["task"], "task"),
            plan=_text(fields["plan"], "plan"),
            base=_text(fields["base"], "base"),
            weight=fields["weight"],
            steps=fields["steps"],
            kind=fields["kind"],
            clients=fields["clients"],
            sections=tuple(_entry(item) for item in cast(list[object], sections)),
        )


def _entry(value: object) -> SectionEntry:
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    if set(fields) != {"name", "codec", "length"} or not _is_whole(fields["length"]):
        raise _malformed("each section must have exactly name, codec and a whole length")
    return SectionEntry(_text(fields["name"], "section name"), _text(fields["codec"], "codec"), fields["length"])


def _text(value: object, name: str) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= LONGEST_TEXT
        or not value.isascii()
        or not value.isprintable()
    ):
        raise _malformed(f"its {name} must be 1 to {LONGEST_TEXT} printable ASCII characters")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_INTEGER


def _malformed(why: str) -> errors.UpdateRefused:
    return errors.UpdateRefused(f"The update's header is malformed: {why}.", code="wrong_format")
