"""Every way to load rows gives the same rows; what is wrong is named with file, column and row."""

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.client_sdk.rows.loading import load_data
from coterie.errors import DataError
from coterie.protocol.schema import DataSchema, Feature, Label

SCHEMA = DataSchema(
    (
        Feature(name="measures", shape=(2,), columns=("width", "height"), low=0, high=100),
        Feature(name="age", dtype="int32", columns=("age",)),
    ),
    Label(name="kind", classes=("cat", "dog"), column="species"),
)
HEADER = "id,species,height,width,age\n"
LINES = ["a,cat,2.5,1,3\n", "b,dog,4,3.25,12\n", "c,cat,0,100,1\n"]
EXPECTED: dict[str, NDArray[Any]] = {
    "measures": np.array([[1, 2.5], [3.25, 4], [100, 0]], np.float32),
    "age": np.array([3, 12, 1], np.int32),
    "kind": np.array([0, 1, 0], np.int32),
}


def save_rows(path: Path, named: Mapping[str, NDArray[Any]]) -> None:
    cast(Any, np).savez(path, **named)


def assert_as_expected(got: dict[str, NDArray[Any]]) -> None:
    assert got.keys() == EXPECTED.keys()
    for name, array in EXPECTED.items():
        assert got[name].dtype == array.dtype and np.array_equal(got[name], array), name


def write(path: Path, lines: list[str] = LINES, header: str = HEADER) -> Path:
    text = header + "".join(lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def arrays() -> dict[str, NDArray[Any]]:
    return {"measures": EXPECTED["measures"], "age": EXPECTED["age"], "kind": np.array(["cat", "dog", "cat"])}


def test_a_csv_in_any_column_order_with_other_columns_beside(tmp_path: Path) -> None:
    assert_as_expected(load_data(write(tmp_path / "pets.csv"), SCHEMA))
    assert_as_expected(load_data(str(write(tmp_path / "pets.csv.gz")), SCHEMA))


def test_a_spreadsheets_byte_order_mark_and_empty_lines_do_no_harm(tmp_path: Path) -> None:
    lines = [LINES[0], "\n", *LINES[1:], "\n"]
    assert_as_expected(load_data(write(tmp_path / "pets.csv", lines, "\ufeff" + HEADER), SCHEMA))


def test_an_npz_a_mapping_and_a_function_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_rows(tmp_path / "pets.npz", {"unrelated": np.zeros(7), **arrays()})
    assert_as_expected(load_data(tmp_path / "pets.npz", SCHEMA))
    assert_as_expected(load_data(arrays(), SCHEMA))
    assert_as_expected(load_data(lambda schema: arrays(), SCHEMA))
    module = "import numpy as np\nfrom pathlib import Path\n"
    module += f"def load():\n    return dict(np.load({str(tmp_path / 'plain.npz')!r}))\n"
    module += "def by_schema(schema):\n    return {**load(), **{}} if schema.label.name == 'kind' else {}\n"
    save_rows(tmp_path / "plain.npz", arrays())
    (tmp_path / "sdk_test_loader.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    assert_as_expected(load_data("sdk_test_loader:load", SCHEMA))
    assert_as_expected(load_data("sdk_test_loader:by_schema", SCHEMA))


def test_a_folder_of_files_is_joined_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", LINES[1:])
    write(tmp_path / "a.csv.gz", LINES[:1])
    (tmp_path / "notes.txt").write_text("not data")
    assert_as_expected(load_data(tmp_path, SCHEMA))


def test_a_name_of_the_schema_reads_nothing_outside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", np.zeros((3, 2), np.float32))
    np.save(folder / "y.npy", np.zeros(3, np.int32))
    schema = DataSchema((Feature(name="../secret", shape=(2,)),), Label(name="y", low=0, high=1))
    with pytest.raises(DataError) as refused:
        load_data(folder, schema)
    assert refused.value.reason == "data_missing"


def test_a_folder_with_one_npy_per_name(tmp_path: Path) -> None:
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    assert_as_expected(load_data(tmp_path, SCHEMA))


BAD_ROWS = [
    ("b,dog,4,wide,12\n", "data_cell", "column 'width', row 2", "'wide'"),
    ("b,dog,4,,12\n", "data_cell", "column 'width', row 2", "''"),
    ("b,dog,4,nan,12\n", "data_cell", "column 'width', row 2", "finite"),
    ("b,dog,400,3,12\n", "data_cell", "column 'height', row 2", "400"),
    ("b,dog,4,3,1.5\n", "data_cell", "column 'age', row 2", "whole number"),
    ("b,bird,4,3,12\n", "data_cell", "column 'species', row 2", "'bird'"),
    ("b,dog,4,3\n", "data_shape", "row 2 has 4 cells", "5"),
    ('b,"dog,4,1_0,12\n', "data_shape", "row 2 opens a quote that is never closed", "cut off"),
    ('b,dog,4,5" pipe,12\n', "data_shape", "row 2 has a quote in the middle of a cell", "double its quotes"),
    ("b,dog,4,1e400,12\n", "data_cell", "column 'width', row 2", "inf is not a finite number"),
    ("b,dog,4,1_0,12\n", "data_cell", "column 'width', row 2", "'1_0'"),
]


@pytest.mark.parametrize(("line", "code", "place", "value"), BAD_ROWS)
def test_a_bad_cell_is_named_with_file_column_and_row(
    tmp_path: Path, line: str, code: str, place: str, value: str
) -> None:
    path = write(tmp_path / "pets.csv", [LINES[0], line, LINES[2]])
    with pytest.raises(DataError) as caught:
        load_data(path, SCHEMA)
    assert caught.value.reason == code
    message = str(caught.value)
    assert "pets.csv" in message and place in message and value in message


def test_a_bad_cell_beyond_the_first_block_of_a_long_file_has_its_own_row_number(tmp_path: Path) -> None:
    path = write(tmp_path / "pets.csv", [*LINES[:1] * 60_000, "b,dog,4,wide,12\n"])
    with pytest.raises(DataError, match="row 60001"):
        load_data(path, SCHEMA)


def test_what_is_not_there_or_not_readable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.npz").write_bytes(b"PK not a zip")
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    (tmp_path / "sdk_test_empty.py").write_text("x = 1\ndef wrong():\n    return 3\n")
    cases: list[tuple[Any, str]] = [
        ("nowhere.csv", "no such file"),
        ("empty", "has no .csv"),
        ("broken.npz", "broken.npz cannot be read"),
        ("table.parquet", "'.parquet' is not known"),
        ("no_such_module_here:load", "no module 'no_such_module_here'"),
        ("sdk_test_empty:load", "no function 'load'"),
        ("sdk_test_empty:wrong", "returned int"),
        (write(tmp_path / "short.csv", LINES, "id,species,height\n"), "column 'width' and 1 more are missing"),
        (write(tmp_path / "twice.csv", [], "species,height,width,age,age\n"), "column 'age' twice"),
        (write(tmp_path / "none.csv", []), "no rows"),
    ]
    for source, message in cases:
        with pytest.raises(DataError, match=message):
            load_data(source, SCHEMA)


def garbled(data: bytes) -> bytes:
    """The data with its middle overwritten."""
    middle = len(data) // 2
    return data[:middle] + b"\xff" * 40 + data[middle + 40 :]


def damaged(folder: Path) -> dict[str, bytes]:
    """Files that are not what their name says, by name."""
    np.save(folder / "one.npy", np.zeros(3))
    with (folder / "whole.npz").open("wb") as file:
        cast(Any, np).savez_compressed(file, **{name: np.repeat(array, 500, 0) for name, array in arrays().items()})
    csv = gzip.compress((HEADER + "".join(LINES)).encode())
    return {
        # After the ten bytes of gzip's own header: a block of the type that deflate does not have.
        "garbled.csv.gz": csv[:10] + b"\x07" + csv[11:],
        "short.csv.gz": csv[:-4],
        "plain.csv.gz": b"no gzip",
        "garbled.npz": garbled((folder / "whole.npz").read_bytes()),
        "short.npz": (folder / "whole.npz").read_bytes()[:-100],
        "array.npz": (folder / "one.npy").read_bytes(),
        "empty.npz": b"",
        "text.npz": b"no archive",
        "latin.csv": b"\xff\xfe,",
    }


def test_a_damaged_file_is_named_whatever_the_damage(tmp_path: Path) -> None:
    for name, content in damaged(tmp_path).items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"^{name} cannot be read: ") as caught:
            load_data(tmp_path / name, SCHEMA)
        assert caught.value.reason == "data_unreadable", name
        assert "unsafely" not in caught.value.message, name
        assert "allow_pickle" not in caught.value.message, name


def test_rows_after_any_number_of_empty_lines_are_read(tmp_path: Path) -> None:
    assert_as_expected(load_data(write(tmp_path / "pets.csv", [LINES[0], "\n" * 120_000, *LINES[1:]]), SCHEMA))


def test_a_pickled_object_is_never_loaded(tmp_path: Path) -> None:
    save_rows(tmp_path / "pets.npz", {**arrays(), "age": np.array([object()] * 3, dtype=object)})
    with pytest.raises(DataError, match="cannot be read"):
        load_data(tmp_path / "pets.npz", SCHEMA)


@pytest.mark.parametrize("given", [None, 5, [[1.0]], b"pets.csv"])
def test_what_is_no_data_at_all_is_named(given: Any) -> None:
    with pytest.raises(DataError, match=rf"^The data must be .*, not a {type(given).__name__}\.") as caught:
        load_data(given, SCHEMA)
    assert caught.value.reason == "data_missing"
