"""What each field of a message means, for the OpenAPI description: read from the docstrings of the messages, which say
it as ``name, name: text``; what these leave out stands in the tables here.
"""

import re
from collections.abc import Mapping
from typing import Any

from coterie.server.api_words import ALIKE, EVERYWHERE, OF_MESSAGES

_ENTRY = re.compile(r"(?:^|(?<=[.;:] ))((?:`{0,2}[a-z_0-9]+`{0,2}, )*`{0,2}[a-z_0-9]+`{0,2}): ")


def descriptions_in(docstring: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a docstring that are about these fields: field → sentence."""
    text = " ".join(docstring.split())
    found: list[tuple[list[str], int, int]] = []
    for match in _ENTRY.finditer(text):
        names = [name.strip("`") for name in match[1].split(", ")]
        if set(names) <= fields.keys():
            found.append((names, match.start(), match.end()))
    ends = [start for _, start, _ in found[1:]] + [len(text)]
    sentences: dict[str, str] = {}
    for (names, _, start), end in zip(found, ends, strict=False):
        sentences |= dict.fromkeys(names, _sentence(text[start:end]))
    return sentences


def _sentence(text: str) -> str:
    trimmed = text.strip().rstrip(".;")
    return f"{trimmed[:1].upper()}{trimmed[1:]}."


def explain(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Give every field of every schema its description, and its default where it may be absent. Fields of which nothing
    is said are left as they are.
    """
    for name, schema in schemas.items():
        like = schemas.get(ALIKE.get(name, ""), {})
        fields: dict[str, dict[str, Any]] = schema.get("properties", {})
        sentences = descriptions_in(like.get("description", ""), fields) | descriptions_in(
            schema.get("description", ""), fields
        )
        for field, value in fields.items():
            if field not in schema.get("required", ()):
                value.setdefault("default", None)
            words = OF_MESSAGES.get(name, {}).get(field) or sentences.get(field) or EVERYWHERE.get(field)
            if words is not None:
                value["description"] = words
