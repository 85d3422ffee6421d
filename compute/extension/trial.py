"""A provider is tried in a process of its own: ``python -m coterie.compute.extension.trial PROVIDER SECONDS``.

Native code that reads where it must not ends its process without an error, and a driver may wait for ever. Here both
are a recipe that failed, like any other.
"""

import json
import sys
from dataclasses import asdict
from math import inf
from typing import Final

from coterie.compute.extension.providers import load_providers
from coterie.compute.runtime.apart import leave, teller, told_apart
from coterie.compute.runtime.conformance import ALL_RECIPES, CaseResult, ConformanceReport, run_recipe
from coterie.compute.runtime.devices import Provider, discover

TRIAL_S: Final = 600.0
"""Ten times what the slowest provider needed that was ever tried: a software Vulkan driver on two cores."""


def tried(provider: Provider, *, limit_s: float = TRIAL_S) -> ConformanceReport:
    """``conformance`` of an installed provider, in a process of its own that may take ``limit_s`` seconds.

    The recipe in which that process ends, or does not end, has failed; none is tried after it.
    """
    lines, ending = told_apart(__name__, provider.name, str(limit_s), limit_s=limit_s)
    cases = [CaseResult(**json.loads(line)) for line in lines]
    if len(cases) < len(ALL_RECIPES):
        said = f"the process that tried it {ending or 'ended without a word'}"
        cases.append(CaseResult(ALL_RECIPES[len(cases)].name, "failed", inf, said))
    return ConformanceReport(provider, tuple(cases))


def main() -> None:
    """Tell the result of each recipe as a line of JSON, as soon as it is there."""
    name, limit_s = sys.argv[1:]
    tell = teller(float(limit_s))
    provider = next((each for each in discover(load_providers()) if each.name == name), None)
    if provider is None:
        sys.exit(f"it does not find {name}")
    for recipe in ALL_RECIPES:
        tell(json.dumps(asdict(run_recipe(recipe, provider))))
    leave()


if __name__ == "__main__":
    main()
