"""A data schema as a file: canonical JSON, which whoever prepares it writes and experiments read."""

import json
from pathlib import Path

from coterie.errors import ConfigurationError
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.conversion import to_json
from coterie.protocol.files import write_durably
from coterie.protocol.schema import DataSchema


def write_schema(path: str | Path, schema: DataSchema) -> Path:
    """Write the schema, whole or not at all, and return the path. Raises StorageError."""
    file = Path(path)
    write_durably(file, json.dumps(json.loads(canonical_json(to_json(schema))), indent=2).encode() + b"\n")
    return file


def read_schema(path: str | Path) -> DataSchema:
    """The inverse of `write_schema`. Raises ConfigurationError (``schema_invalid``) for a file that is absent or holds
    no schema; InputError (``json_invalid``).
    """
    file = Path(path)
    try:
        return DataSchema.from_json(parse_json(file.read_bytes()))
    except FileNotFoundError:
        raise ConfigurationError(
            f"There is no schema file {file}.", hint="`coterie prepare` writes it.", code="schema_invalid"
        ) from None
