"""A coordinator takes the methods of installed packages: it checks plans by them and aggregates with them."""

import asyncio
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from server_kit import Opener, fleet, once, tiny, update

from coterie.aggregation.plan.manifest import NamedRule
from coterie.protocol.tensors import decode_tensors

SOURCE = '''
from coterie.aggregation.horizontal.algorithm import Algorithm, ServerPart


def Farther(by: float) -> Algorithm:
    """FedAvg whose server goes by times as far."""
    def apply(aggregates, state, optimize):
        return by * optimize(aggregates.sections["delta"]), state

    return Algorithm(name="farther", parameters={"by": by}, server=ServerPart(apply=apply))
'''


@pytest.mark.usefixtures("own_workers")
def test_a_coordinator_runs_the_method_of_an_installed_package(
    coordinator: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    info = site / "farther_package-0.1.dist-info"
    info.mkdir(parents=True)
    recipe = replace(tiny(), manifest=replace(tiny().manifest, algorithm=NamedRule("farther", {"by": 3.0})))

    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            request = await operator.request(recipe=recipe, rounds=1, cohort=1, evaluate_every=0)
            body = request.model_dump(mode="json")
            unknown = await operator.call("POST", "/v1/experiments", json=body)
            assert unknown.json()["code"] == "unknown_algorithm" and "coterie.methods" in unknown.json()["hint"]
            (site / "farther_package.py").write_text(SOURCE, encoding="utf-8")
            (info / "METADATA").write_text(
                "Metadata-Version: 2.1\nName: farther-package\nVersion: 0.1\n", encoding="utf-8"
            )
            points = "[coterie.methods]\nfarther = farther_package:Farther\n"
            (info / "entry_points.txt").write_text(points, encoding="utf-8")
            monkeypatch.setattr(sys, "path", [str(site), *sys.path])
            importlib.invalidate_caches()
            # The worker process is started anew with the first job.
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
            made = await operator.ok("POST", "/v1/experiments", json=body, headers=once())
            task = await device.task()
            assert (await device.upload(task, update(task, 2.0, recipe=recipe))).status_code == 200
            await operator.finished(made["id"])
            newest = (await operator.models(made["id"]))[-1]
            tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{newest['sha256']}")).content)
            assert newest["round"] == 1 and np.array_equal(tensors["w"], np.full(3, 6.0, np.float32))

    try:
        asyncio.run(work())
    finally:
        sys.modules.pop("farther_package", None)
