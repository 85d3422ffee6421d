"""Tables in files of several kinds: the same names, texts and numbers, and errors that hold no cell."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute.data.sources.table_files import read_numbers, read_texts, table_names
from coterie.errors import ConfigurationError, DataError

IDS, DEBT, TOWN = ["007", "8", "19"], [1.5, float("nan"), -3.0], ["Rome", "Oslo", "Bonn"]


def write(path: Path) -> Path:
    """The table in the format of the path's ending."""
    columns = {"id": IDS, "debt": DEBT, "years": [1, 2, 3], "town": TOWN}
    if path.suffix == ".csv":
        lines = (f"{i},{'' if d != d else d},{y},{t}" for i, d, y, t in zip(*columns.values(), strict=True))
        path.write_text("\n".join(["id,debt,years,town", *lines]) + "\n", encoding="utf-8")
    elif path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
        np.savez(path, **arrays)
    else:
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        debts = [None if value != value else value for value in DEBT]
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        parquet.write_table(arrow.table({**columns, "debt": debts, "years": [1, None, 3]}), path)
    return path


@pytest.mark.parametrize("ending", [".csv", ".npz", ".parquet"])
def test_every_kind_of_file_gives_the_same(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"table{ending}")
    assert table_names(path) == ("id", "debt", "years", "town")
    assert [str(cell) for cell in read_texts(path, ("id",))["id"]] == IDS
    numbers = read_numbers(path, ("debt",))
    assert np.array_equal(np.asarray(numbers["debt"], np.float64), DEBT, equal_nan=True)
    assert read_numbers(path, ()) == read_texts(path, ()) == {}
    with pytest.raises(DataError, match="'debts'"):
        read_numbers(path, ("debts",))
    if ending == ".parquet":
        gaps = np.asarray(read_numbers(path, ("years",))["years"])
        assert np.array_equal(gaps, [1, np.nan, 3], equal_nan=True)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".npz", ".parquet"])
def test_files_that_are_not_there_or_damaged_are_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table{ending}"
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(DataError) as missing:
        read_numbers(path, ("x",))
    assert missing.value.reason in ("data_missing", "data_unreadable") and path.name in missing.value.message
    path.write_bytes(b"\x00\x01 no table\n")
    with pytest.raises(DataError, match=path.name):
        read_numbers(path, ("x",))


def test_text_among_numbers_is_named_by_its_row_and_not_said(tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv")
    with pytest.raises(DataError, match="column 'town' holds no number in row 1") as caught:
        read_numbers(path, ("debt", "town"))
    error: BaseException | None = caught.value
    while error is not None:
        assert "Rome" not in str(error)
        error = error.__cause__ or error.__context__
    with pytest.raises(DataError, match=r"the ending '\.xls' is not known"):
        table_names(tmp_path / "table.xls")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigurationError, match=r"coterie\[parquet\]") as caught:
        table_names(tmp_path / "table.parquet")
    assert caught.value.reason == "extra_missing"
