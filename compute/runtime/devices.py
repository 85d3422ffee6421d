"""Which execution providers there are: those of ONNX Runtime, those of its plug-ins, and those of other packages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from coterie.compute.onnx.providers import ProviderClass, class_of
from coterie.compute.runtime.drivers import driver_of
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.libraries import library_versions
from coterie.compute.runtime.plugin_session import PluginSession, Runner
from coterie.compute.runtime.session import CPU, Session, available_providers, runtime_version
from coterie.errors import ConfigurationError, CoterieError, GraphRefused


@dataclass(frozen=True)
class Provider:
    """An execution provider, as it is on this machine.

    runtime: the version of what brings it: ONNX Runtime, with a plug-in's own before it, or another package.
    open: what loads the bytes of an ONNX file and gives back what runs it; None for those of ONNX Runtime.
    driver: what lies under it (`coterie.compute.runtime.drivers`); "" where nobody says.
    kind: its class, where the package that brings it says so.
    """

    name: str
    runtime: str
    open: Callable[[bytes], Runner] | None = field(default=None, compare=False)
    driver: str = ""
    kind: ProviderClass | None = None

    @property
    def variant(self) -> ProviderClass | None:
        """The class whose variant of a plan it takes; None for a provider that nobody knows."""
        return self.kind or class_of(self.name)

    def executable(self, data: bytes, *, threads: int = 1, fallback: bool = True) -> Executable:
        """Load a graph. fallback: let nodes that this provider lacks run on the CPU; a package's provider takes all
        nodes or none.

        Raises GraphRefused when it does not load, ConfigurationError when the provider is absent.
        """
        if self.open is None:
            return Executable(data, provider=self.name, threads=threads, fallback=fallback)
        try:
            run = self.open(data)
        except CoterieError:
            raise
        except Exception as error:  # foreign code: whatever it raises is its refusal
            raise GraphRefused(f"{self.name} cannot load the graph: {type(error).__name__}: {error}") from error
        # It is bound to memory of its own kind only, which the protocol cannot say.
        session = cast(Session, PluginSession(data, self.name, run))
        return Executable(data, provider=self.name, threads=threads, session=session)

    def load(self, data: bytes) -> Runner:
        """Load a graph for this provider alone, without help from the CPU."""
        return self.executable(data, fallback=False).run


ON_CPU = Provider(CPU, "")
"""The CPU, whatever its version: what everything falls back to."""


def discover(plugins: Iterable[Provider] = ()) -> list[Provider]:
    """The providers that run graphs on this machine: ONNX Runtime's in its order of preference, those of its installed
    plug-ins, and those of other packages (``coterie.compute.extension.providers.load_providers`` finds the installed
    ones). Trust none before it conforms.

    Raises ConfigurationError for two of one name.
    """
    found = [*map(provider_named, available_providers()), *plugins]
    names = [provider.name for provider in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"There are two providers called {twice[0]}.", hint="Leave out the plug-in that repeats it."
        )
    return found


def provider_named(name: str) -> Provider:
    """A provider of ONNX Runtime, or of a plug-in of it, with its version and driver. It need not be there."""
    own = library_versions().get(name) if name != CPU else None
    return Provider(name, f"{own} on {runtime_version()}" if own else runtime_version(), driver=driver_of(name))
