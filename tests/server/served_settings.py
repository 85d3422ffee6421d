"""A coordinator as a program: ``served_settings SETTINGS LIMITS``, both JSON.

It tells its URL and its administrator's token as one line of JSON, or why it does not start; then it ends with code 3.
"""

import json
import resource
import sys

from coterie.errors import CoterieError
from coterie.server.serve import Started, serve
from coterie.server.settings import Settings
from coterie.server.worker import workers
from tests.prepared import WORKER


def ready(started: Started) -> None:
    """Tell whoever started it."""
    print(json.dumps([started.url, started.admin_token]), flush=True)


def main() -> None:
    """Serve until a signal ends it. Of the limits, ``own_worker`` asks for a worker process as outside of tests, which
    is a child of this one; the others are limits of the system by their names, as `resource` has them.
    """
    settings, limits = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    if limits.pop("own_worker"):
        workers.PROGRAM = (sys.executable, "-m", WORKER)
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, resource.getrlimit(getattr(resource, name))[1]))
    try:
        serve(Settings.model_validate(settings), ready)
    except CoterieError as error:
        print(json.dumps({"code": error.reason, "message": str(error)}), flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
