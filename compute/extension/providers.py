"""Execution providers that installed packages bring."""

from coterie.compute.extension.plugins import broken_plugin, installed, loaded
from coterie.compute.runtime.devices import Provider


def load_providers() -> tuple[Provider, ...]:
    """The providers that installed packages offer as ``coterie.providers``, for ``devices.discover``. They are as
    untrusted as all others until they conform.

    Raises ConfigurationError "plugin_broken" for a package whose entry point cannot be loaded or names no Provider with
    ``open``.
    """
    found: list[Provider] = []
    for point in installed("coterie.providers"):
        provider = loaded(point)
        if not isinstance(provider, Provider) or provider.open is None:
            raise broken_plugin(point, f"{point.value} is no Provider that opens graphs.")
        found.append(provider)
    return tuple(found)
