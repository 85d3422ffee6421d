"""What leaves a researcher's machine when an experiment is submitted."""

from pathlib import Path

import numpy as np
import pytest
from sdk_kit import SCHEMA, Lab, experiment, rows, run

from coterie.errors import DataError, RemoteError
from coterie.protocol.tensors import decode_tensors


def test_evaluation_rows_from_a_file_are_sent_checked(tmp_path: Path) -> None:
    held_out = rows(20, 9)
    np.savez(tmp_path / "held-out.npz", x=held_out["x"], y=held_out["y"], own=np.zeros(3))

    async def work(place: Lab) -> None:
        wanted = experiment("held out", evaluation=tmp_path / "held-out.npz")
        await place.submit(wanted)
        sent = [blob.read_bytes() for blob in (tmp_path / "server" / "blobs").rglob("*") if blob.is_file()]
        tensors = [dict(decode_tensors(data)) for data in sent if b'"y"' in data[:400]]
        assert [set(each) for each in tensors] == [{"x", "y"}]
        checked = SCHEMA.check(held_out, "rows")
        assert all(np.array_equal(tensors[0][name], checked[name]) for name in checked)

    run(work, tmp_path)


def test_evaluation_rows_that_cannot_be_read_leave_nothing_behind(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        with pytest.raises(DataError, match=r"gone.csv: there is no such file"):
            await place.submit(experiment("gone", evaluation=tmp_path / "gone.csv"))
        with pytest.raises(RemoteError, match="no population .gone."):
            await place.control.enrolment_token("gone")

    run(work, tmp_path)
