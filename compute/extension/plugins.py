"""What installed packages add, by entry points. Nothing is looked for until it is asked for.

    [project.entry-points."coterie.primitives"]
    example = "example_package.primitives:PLUGIN"        # a UserPrimitive, or a Registry of them and of kernels

    [project.entry-points."coterie.providers"]
    example = "example_package.provider:PROVIDER"        # a coterie.compute.runtime.devices.Provider with ``open``

    [project.entry-points."coterie.converters"]
    example = "example_package.compiler:CONVERTER"       # a coterie.compute.bundle.Converter

    [project.entry-points."coterie.methods"]
    example = "example_package.method:METHOD"            # see coterie.aggregation.own_methods

Loading runs the code of these packages, as importing them would.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeAlias

from coterie.compute.extension.registry import Registry, active_registry
from coterie.compute.extension.row import UserPrimitive
from coterie.compute.source import source_of
from coterie.errors import ConfigurationError, InputError

Group: TypeAlias = Literal["coterie.primitives", "coterie.providers", "coterie.converters", "coterie.methods"]


def load_plugins(registry: Registry | None = None) -> tuple[str, ...]:
    """Register what installed packages offer as ``coterie.primitives``, and return the names of all their primitives.

    registry: where to; that of this context when absent. Loading again changes nothing. A package that is broken, or
    whose names are taken, adds nothing and does not keep the others out; after them it is told by ConfigurationError
    "plugin_broken", whose message says whose fault it is.
    """
    target = active_registry() if registry is None else registry
    names: list[str] = []
    faults: list[ConfigurationError] = []
    for point in installed("coterie.primitives"):
        try:
            offered = _offered(point)
            target.merge(offered, origin=_told(point))
        except InputError as error:
            faults.append(error if isinstance(error, ConfigurationError) else broken_plugin(point, error.message))
            continue
        names += offered.primitives
    if faults:
        raise faults[0]
    return tuple(names)


def installed(group: Group) -> list[EntryPoint]:
    """The entry points of a group, by name."""
    return sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


def loaded(point: EntryPoint) -> Any:
    """What an entry point names. Raises ConfigurationError "plugin_broken" for whatever goes wrong in its package."""
    try:
        return point.load()
    except Exception as error:  # foreign code is imported: whatever it raises is told as its fault
        where = source_of(error)
        told = f"{type(error).__name__}: {error}".rstrip(".")
        raise broken_plugin(point, f"{told}{f' ({where})' if where else ''}.") from error


def broken_plugin(point: EntryPoint, why: str) -> ConfigurationError:
    """The error that an installed package offers something that coterie cannot use."""
    return ConfigurationError(
        f"{_told(point)} cannot be used: {why} The fault is in that package, not in coterie.",
        hint="Tell its authors, or uninstall it.",
        code="plugin_broken",
    )


def _told(point: EntryPoint) -> str:
    package = f" of the package {point.dist.name} {point.dist.version}" if point.dist else ""
    return f"the plugin {point.name!r}{package}"


def _offered(point: EntryPoint) -> Registry:
    found = loaded(point)
    if isinstance(found, Registry):
        return found
    if not isinstance(found, UserPrimitive):
        raise broken_plugin(point, f"{point.value} is a {type(found).__name__}, not a primitive or a Registry.")
    offered = Registry()
    offered.register(found)
    return offered
