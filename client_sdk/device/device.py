"""The device for synchronous code: `Device`."""

from pathlib import Path
from types import TracebackType

from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.endorsement import read_endorsement
from coterie.client_sdk.device.history import HistoryEntry
from coterie.client_sdk.device.membership import Membership
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.preview import DryRun
from coterie.client_sdk.device.settings import AgentSettings, DeviceListener, RunSummary
from coterie.client_sdk.device.trainers.base import Trainer
from coterie.client_sdk.portal import Portal
from coterie.client_sdk.rows.loading import DataSource

DEFAULT_FOLDER = Path(".coterie/client")


def _ignore(event: object) -> None:
    """The listener of those who want none."""


class Device:
    """A device of a population.

        with Device("http://127.0.0.1:8765", data="digits.npz", token="coterie_enrol_…") as device:
            device.run()

    url: of the coordinator.
    data: a folder, a CSV or NPZ file, ``"module:function"``, a function, arrays, or a source or data set of
        ``coterie.compute.data`` (`load_rows`).
    folder: what the device remembers; one process at a time.
    token: needed the first time.
    trainer: None runs the plan's graphs.
    endorsement: a file of `coterie identities endorse`, needed once.
    policy: what this device accepts.
    ca: PEM of the coordinator's authority.
    on_event: gets a JSON-able mapping with the key ``event`` for everything that happens, in the device's own thread.

    Methods block; `stop` and `close` may be called from other threads. Raises ConfigurationError when the folder is in
    use.
    """

    def __init__(
        self,
        url: str,
        *,
        data: DataSource,
        folder: str | Path = DEFAULT_FOLDER,
        token: str | None = None,
        name: str | None = None,
        trainer: Trainer | None = None,
        policy: DevicePolicy | None = None,
        backoff: Backoff | None = None,
        ca: str | Path | None = None,
        endorsement: str | Path | None = None,
        on_event: DeviceListener = _ignore,
    ) -> None:
        settings = AgentSettings(
            url=url,
            data=data,
            folder=Path(folder),
            token=token,
            name=name,
            trainer=trainer,
            policy=policy or DevicePolicy(),
            backoff=backoff or Backoff(),
            ca=ca,
            endorsement=None if endorsement is None else read_endorsement(Path(endorsement)),
            on_event=on_event,
        )
        self._portal = Portal()
        self._stopped = False
        try:
            self._agent = self._portal.call(_make_agent(settings))
        except BaseException:
            self._portal.close()
            raise

    def join(self) -> Membership:
        """Learn the population's schema, check the data against it, and enrol; only the first time has effects."""
        return self._portal.call(self._agent.join())

    def run(self, *, rounds: int | None = None) -> RunSummary:
        """Work until `stop`, or until ``rounds`` training updates have settled; see `Agent.run`."""
        return self._portal.call(self._agent.run(rounds=rounds))

    def dry_run(self, save: str | Path | None = None) -> DryRun:
        """Do one task and show what would leave, instead of sending it; ``save`` takes the exact bytes. See
        `Agent.dry_run`.
        """
        return self._portal.call(self._agent.dry_run(None if save is None else Path(save)))

    def history(self) -> list[HistoryEntry]:
        """What this device has done, oldest first; needs no network."""
        return self._portal.call(_history(self._agent))

    def stop(self) -> None:
        """Make `run` return after the current request or training step; the task in flight is given back.

        Safe in a signal handler.
        """
        self._portal.soon(self._agent.stop)

    def close(self) -> None:
        """Release the folder and the connections."""
        if not self._stopped:
            self._stopped = True
            self._agent.stop_training()
            self._portal.call(self._agent.close())
            self._portal.close()

    def __enter__(self) -> "Device":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _make_agent(settings: AgentSettings) -> Agent:
    return Agent(settings)


async def _history(agent: Agent) -> list[HistoryEntry]:
    return agent.store.history()
