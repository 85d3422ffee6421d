"""`submit`: the counterpart of `coterie.simulation.simulate` for a coordinator."""

from pathlib import Path

from coterie.aggregation.experiment import Experiment
from coterie.client_sdk.control.control import Control, Run
from coterie.protocol.signing import SigningKey


def submit(
    experiment: Experiment,
    url: str,
    *,
    token: str,
    key: SigningKey | str | Path,
    population: str | None = None,
    ca: str | Path | None = None,
) -> Run:
    """Start an experiment on the coordinator at ``url``; it goes on there whatever becomes of this process.

    token: of a researcher or an administrator.
    key: the researcher's signing key, or the file that holds it, made there (mode 0600) when absent.
    population: made from the experiment's name when None.
    ca: PEM of the coordinator's authority.
    Returns the run: ``run.wait()`` gives the history.
    Raises ExperimentError, RemoteError, ConfigurationError (the key file).
    """
    control = Control(url, token=token, ca=ca)
    return control.submit(experiment, key=signing_key(key), population=population)


def signing_key(key: SigningKey | str | Path) -> SigningKey:
    """A key, or the one in a file that is made when absent."""
    if isinstance(key, SigningKey):
        return key
    path = Path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    return SigningKey.load_or_create(path)
