"""Execution providers that installed packages bring."""

from typing import cast

from coterie.compute.extension.plugins import broken_plugin, installed, loaded
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.session import available_providers
from coterie.errors import ConfigurationError


def load_providers() -> tuple[Provider, ...]:
    """The providers that installed packages offer as ``coterie.providers``, for ``devices.discover``. They are as
    untrusted as all others until they conform.

    A package that is broken, or whose provider has the name of another one, adds none and does not keep the others
    out; ``broken_providers`` tells.
    """
    return _looked_at()[0]


def broken_providers() -> tuple[ConfigurationError, ...]:
    """What is wrong with the packages whose providers ``load_providers`` leaves out: errors "plugin_broken"."""
    return _looked_at()[1]


def _looked_at() -> tuple[tuple[Provider, ...], tuple[ConfigurationError, ...]]:
    found: dict[str, Provider] = {}
    faults: list[ConfigurationError] = []
    taken = set(available_providers())
    for point in installed("coterie.providers"):
        try:
            offered = loaded(point)
        except ConfigurationError as error:
            faults.append(error)
            continue
        if not isinstance(offered, Provider) or not callable(offered.open):
            faults.append(broken_plugin(point, f"{point.value} is no Provider that opens graphs."))
        elif not all(isinstance(cast(object, each), str) for each in (offered.name, offered.runtime, offered.driver)):
            faults.append(broken_plugin(point, f"name, runtime and driver of {point.value} must be strings."))
        elif offered.name in taken:
            faults.append(broken_plugin(point, f"there is another provider called {offered.name}."))
        else:
            taken.add(offered.name)
            found[offered.name] = offered
    return tuple(found.values()), tuple(faults)
