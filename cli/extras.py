"""Commands that need more than the plain install say so by name."""

from importlib.util import find_spec

from coterie.errors import ConfigurationError

# One import name for each requirement of an extra that shows whether it is there.
EXTRAS: dict[str, tuple[str, ...]] = {
    "server": (
        "aiosqlite",
        "alembic",
        "fastapi",
        "obstore",
        "prometheus_client",
        "pydantic_settings",
        "sqlalchemy",
        "structlog",
        "uvicorn",
    ),
    "demo": ("sklearn",),
    "plot": ("matplotlib",),
}


def missing(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if find_spec(module) is None]


def require(*extras: str, command: str) -> None:
    """Refuse to go on without these extras, naming the install that brings them."""
    absent = [module for extra in extras for module in missing(extra)]
    if absent:
        raise ConfigurationError(
            f"`coterie {command}` needs {', '.join(absent)}, which the base install does not include.",
            hint=f'Run: pip install "coterie[{extras[-1]}]"',
            code="extra_missing",
        )
