"""Every source obeys the same laws; each names what it cannot read."""

import gzip
import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coterie.compute.data import (
    ArraySource,
    ArrowSource,
    Column,
    CsvSource,
    Dataset,
    HuggingFaceSource,
    ImageFolder,
    JsonlSource,
    NpzSource,
    RecordSource,
    Source,
    TextSource,
    open_source,
    write_records,
)
from coterie.compute.data.transforms import DecodeImage
from coterie.errors import ArgumentTypeError, DataError

COUNT = 23


def _number(row: int) -> float:
    return row * 0.5 - 3


def _arrays() -> dict[str, Any]:
    return {"x": np.array([_number(row) for row in range(COUNT)]), "name": [f"ñ{row}" for row in range(COUNT)]}


def _csv(folder: Path) -> Source:
    (folder / "a.csv").write_text("x,name\n" + "".join(f"{_number(k)},ñ{k}\n" for k in range(COUNT)), encoding="utf-8")
    return open_source(folder / "a.csv")


def _npz(folder: Path) -> Source:
    arrays = _arrays()
    np.savez(folder / "a.npz", x=arrays["x"], name=np.array(arrays["name"]))
    return open_source(str(folder / "a.npz"))


def _jsonl(folder: Path) -> Source:
    lines = [json.dumps({"x": _number(k), "name": f"ñ{k}"}) for k in range(COUNT)]
    (folder / "a.jsonl.gz").write_bytes(gzip.compress("\n\n".join(lines).encode()))
    return open_source(folder / "a.jsonl.gz")


def _record(folder: Path) -> Source:
    write_records(folder / "a.rec", ArraySource(_arrays()))
    return open_source(folder / "a.rec")


SOURCES: Mapping[str, Callable[[Path], Source]] = {
    "arrays": lambda folder: open_source(_arrays()),
    "csv": _csv,
    "jsonl": _jsonl,
    "npz": _npz,
    "record": _record,
}


def _text(folder: Path) -> Source:
    (folder / "a.txt").write_bytes(
        "\ufeffñ0\r\n\r\nñ1\n".encode() + b"".join(f"ñ{k}\n".encode() for k in range(2, COUNT))
    )
    return open_source(folder / "a.txt")


def _images(folder: Path) -> Source:
    for row in range(COUNT):
        (folder / "images" / f"class{row // 12}").mkdir(parents=True, exist_ok=True)
        (folder / "images" / f"class{row // 12}" / f"{row:02}.PNG").write_bytes(b"image %d" % row)
    (folder / "images" / "class0" / "notes.txt").write_text("no image")
    (folder / "images" / "class0" / ".hidden.png").write_text("no image")
    return open_source(folder / "images")


EVERY = {**SOURCES, "text": _text, "images": _images}


def _listed(rows: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in rows.items()}


@pytest.mark.capability("F2", "F3")
@pytest.mark.parametrize("name", SOURCES)
def test_every_format_holds_the_same_rows(tmp_path: Path, name: str) -> None:
    source = SOURCES[name](tmp_path)
    assert len(source) == COUNT
    assert dict(source.columns) == {"x": Column("float64"), "name": Column("str")}
    indices = np.array([22, 0, 7, 7])
    found = source.rows(indices)
    np.testing.assert_array_equal(found["x"], [_number(k) for k in indices])
    assert found["name"] == ["ñ22", "ñ0", "ñ7", "ñ7"]


@pytest.mark.capability("F3")
@pytest.mark.parametrize("name", EVERY)
def test_rows_are_what_the_columns_say(tmp_path: Path, name: str) -> None:
    source = EVERY[name](tmp_path)
    for indices in (np.arange(COUNT), np.array([3, 3]), np.empty(0, np.int64)):
        rows = source.rows(indices)
        assert list(rows) == list(source.columns)
        for column_name, column in source.columns.items():
            values = rows[column_name]
            assert len(values) == len(indices)
            if column.fixed:
                assert isinstance(values, np.ndarray)
                assert (values.dtype.name, values.shape[1:]) == (column.dtype, column.shape)
            else:
                kind = {"str": str, "bytes": bytes}[column.dtype]
                assert all(type(value) is kind for value in values)


@pytest.mark.parametrize("name", EVERY)
def test_rows_by_number_are_rows_one_by_one_in_any_thread(tmp_path: Path, name: str) -> None:
    source = EVERY[name](tmp_path)
    indices = np.random.default_rng(0).permutation(COUNT)
    with ThreadPoolExecutor(8) as pool:
        singles = [_listed(rows) for rows in pool.map(source.rows, indices.reshape(-1, 1))]
    together = _listed(source.rows(indices))
    assert {name: [single[name][0] for single in singles] for name in together} == together


def _read_elsewhere(source: Source) -> dict[str, list[Any]]:
    return _listed(source.rows(np.array([5, 2])))


def test_sources_are_read_in_a_spawned_process(tmp_path: Path) -> None:
    sources = [make(tmp_path) for make in EVERY.values()]
    expected = [_read_elsewhere(source) for source in sources]
    with get_context("spawn").Pool(1) as pool:
        assert pool.map(_read_elsewhere, sources) == expected


@pytest.mark.parametrize("name", [name for name in EVERY if name != "arrays"])
def test_what_is_sent_to_a_process_is_not_the_rows(tmp_path: Path, name: str) -> None:
    source = EVERY[name](tmp_path)
    source.rows(np.arange(COUNT))
    assert len(pickle.dumps(source)) < 1000


REFUSED: list[tuple[str, Callable[[Path], object], str, str]] = [
    ("no column", lambda _: ArraySource({}), "no column", "data_missing"),
    ("lengths", lambda _: ArraySource({"x": np.zeros(2), "y": [""]}), "'x' has 2, 'y' has 1", "data_lengths"),
    ("objects", lambda _: ArraySource({"x": np.array([{}])}), "'x' is an array of object", "data_dtype"),
    ("a scalar", lambda _: ArraySource({"x": np.array(1.0)}), "'x' is a single value", "data_dtype"),
    ("mixed", lambda _: ArraySource({"x": cast(Any, ["a", b"b"])}), "sequence of bytes and str", "data_dtype"),
    ("one text", lambda _: ArraySource({"x": "abc"}), "'x' is a str", "data_dtype"),
    ("nothing", lambda folder: open_source(folder / "photos"), "no such file or folder", "data_missing"),
    ("ending", lambda folder: open_source(folder / "a.xls"), "no source reads this ending", "data_unknown_format"),
    ("kind", lambda _: open_source(3), "A int is no source", "data_unknown_format"),
    ("no npz", lambda folder: len(NpzSource(folder / "a.npz")), "no such file", "data_missing"),
    ("no text", lambda folder: len(TextSource(folder / "a.txt")), "no such file", "data_missing"),
    ("no folder", lambda folder: len(ImageFolder(folder / "a")), "no such folder", "data_missing"),
    ("no image", lambda folder: len(ImageFolder(folder)), "no image in the folder", "data_empty"),
]


@pytest.mark.parametrize(("use", "message", "code"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_no_source_is_refused(tmp_path: Path, use: Callable[[Path], object], message: str, code: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        use(tmp_path)
    assert caught.value.reason == code


NAMELESS: list[Callable[[Path], Any]] = [
    lambda path: ArraySource(cast(Any, [1, 2])),
    lambda path: len(CsvSource(path / "a.csv", select=cast(Any, ["x"]))),
    lambda path: len(CsvSource(path / "a.csv", dtypes=cast(Any, "int32"))),
    lambda path: len(NpzSource(path / "a.npz", cast(Any, ["x"]))),
    lambda path: JsonlSource(path / "a.jsonl", cast(Any, ["x"])).columns,
]


@pytest.mark.parametrize("use", NAMELESS)
def test_a_list_where_names_are_needed_is_named(tmp_path: Path, use: Callable[[Path], Any]) -> None:
    with pytest.raises(ArgumentTypeError, match="must be a mapping by name, got a (list|str)"):
        use(tmp_path)


def _npz_bytes(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _encrypted(archive: bytes) -> bytes:
    """An archive whose file is said to be encrypted, in both places."""
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = archive.index(mark) + offset
        archive = archive[:at] + b"\x01" + archive[at + 1 :]
    return archive


def _array_of(shape: str) -> bytes:
    """An archive of an array with this in its head."""
    file = io.BytesIO()
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    return file.getvalue()


class Trap:
    """A pickle of it makes a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("sprung"),)


@pytest.mark.parametrize(
    ("data", "message", "code"),
    [
        (_npz_bytes(x=np.zeros(2))[:-30], "cannot be read", "data_unreadable"),
        (_npz_bytes(x=np.array([Trap()], object)), "other things than plain arrays", "data_unreadable"),
        (pickle.dumps(Trap()), "other things than plain arrays", "data_unreadable"),
        (_npz_bytes(x=np.zeros(2), y=np.zeros(3)), r"^a\.npz: .*'x' has 2, 'y' has 3", "data_lengths"),
        (_npz_bytes(x=np.zeros(2), z=np.zeros(2, complex)), r"^a\.npz: .*'z' is an array of complex128", "data_dtype"),
        (_encrypted(_npz_bytes(x=np.zeros(2))), "cannot be read: .* encrypted", "data_unreadable"),
        (_array_of("(2**62,)"), "cannot be read: ", "data_unreadable"),
        (_array_of("(4611686018427387904,)"), "cannot be read: ", "data_unreadable"),
        (_array_of("(2,"), "cannot be read: ", "data_unreadable"),
        (_npz_bytes(y=np.zeros(3)), "array 'x' is missing; found y", "data_missing"),
    ],
    ids=["cut off", "objects", "a pickle", "lengths", "complex", "encrypted", "computed", "endless", "open", "missing"],
)
def test_an_npz_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        len(NpzSource(path, {"x": "x"} if code == "data_missing" else None))
    assert caught.value.reason == code
    assert not Path("sprung").exists()


JSONL: list[tuple[str, Mapping[str, Column] | None, str]] = [
    ('{"x": 1}\n{"x": 2\n', None, "row 2 is no JSON"),
    ('{"x": 1}\n' + "[" * 100_000, None, "row 2 is no JSON"),
    ('{"x": 1}\n[1]\n', None, "row 2 is no JSON object"),
    ('{"x": 1}\n{"y": 2}\n', None, "row 2, column 'x' is missing"),
    ('{"x": 1}\n{"x": "one"}\n', None, "row 2, column 'x' is \"one\", not int64"),
    ('{"x": 1}\n{"x": 1.5}\n', None, "row 2, column 'x' is 1.5, not int64"),
    ('{"x": 1}\n{"x": true}\n', None, "row 2, column 'x' is true, not int64"),
    ('{"x": 1}\n{"x": null}\n', None, "row 2, column 'x' is null, not int64"),
    ('{"x": 1}\n{"x": 99999999999999999999}\n', None, "not int64"),
    ('{"x": 1}\n{"x": 300}\n', {"x": Column("uint8")}, "row 2, column 'x' is 300, not uint8"),
    ('{"x": "a"}\n{"x": 2}\n', None, "row 2, column 'x' is 2, not text"),
    ('{"x": [1, 2]}\n{"x": [1]}\n', None, r"row 2, column 'x' has the shape \(1,\), not \(2,\)"),
    ('{"x": [1, 2]}\n{"x": [1, [2]]}\n', None, "row 2, column 'x' is .*, not int64"),
    ('{"x": [1, 2]}\n{"x": [1, true]}\n', None, "row 2, column 'x' is .*, not int64"),
    ('{"x": {"y": 1}}\n', None, "row 1, column 'x' is neither text nor numbers"),
    ('{"x": 1}\n{"x": -1e39}\n', {"x": Column("float32")}, r"row 2, column 'x' is -1e\+39, not float32"),
    ('{"x": 1}\n', {"x": Column("bytes")}, "'x' is declared as 'bytes', which JSON has no values of"),
    ('{"x": 1}\n', {"x": Column("floaty")}, "'x' is declared as 'floaty', which JSON has no values of"),
    ("\n\n", None, "there is no row"),
]


@pytest.mark.parametrize(("text", "declared", "message"), JSONL)
def test_json_that_does_not_fit_is_named(
    tmp_path: Path, text: str, declared: Mapping[str, Column] | None, message: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        source = JsonlSource(path, declared)
        source.rows(np.arange(len(source)))


def test_json_of_arrays_and_of_lists_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"x": [[1, 2], [3, 4]], "t": [1], "f": 1, "b": true}\n{"x": [[5, 6], [7, 8]], "t": [], "f": null, "b": false}'
    )
    declared = {
        "x": Column("float32", (2, 2)),
        "t": Column("int64", (None,)),
        "f": Column("float32"),
        "b": Column("bool"),
    }
    rows = JsonlSource(path, declared).rows(np.array([1, 0]))
    np.testing.assert_array_equal(rows["x"], np.array([[[5, 6], [7, 8]], [[1, 2], [3, 4]]], np.float32))
    assert [value.tolist() for value in rows["t"]] == [[], [1]]
    np.testing.assert_array_equal(rows["f"], [np.nan, 1])
    np.testing.assert_array_equal(rows["b"], [False, True])
    inferred = JsonlSource(tmp_path / "a.jsonl").columns
    assert (inferred["x"], inferred["b"], inferred["f"]) == (Column("int64", (2, 2)), Column("bool"), Column("int64"))


def test_numbers_come_in_this_machines_order_of_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([1, 2], ">f8"))
    found = NpzSource(tmp_path / "a.npz").rows(np.array([1]))["x"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64 and found.tolist() == [2]


def test_text_is_lines_and_names_the_line_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\ntwo\r\n\xff\nlast")
    source = TextSource(path, "words")
    assert len(source) == 4
    assert source.rows(np.array([3, 1]))["words"] == ["last", "two"]
    with pytest.raises(DataError, match="line 4 is not UTF-8"):
        source.rows(np.array([2]))
    path.write_bytes(b"")
    assert len(TextSource(path)) == 0
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a\nb\n")[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        len(TextSource(tmp_path / "a.txt.gz"))


def test_images_have_the_labels_of_their_classes(tmp_path: Path) -> None:
    source = _images(tmp_path)
    assert isinstance(source, ImageFolder)
    assert source.class_names == ("class0", "class1")
    rows = source.rows(np.array([0, 22]))
    assert rows == {
        "image": [b"image 0", b"image 22"],
        "label": rows["label"],
        "path": ["class0/00.PNG", "class1/22.PNG"],
    }
    np.testing.assert_array_equal(rows["label"], [0, 1])
    # A client that lacks the first class numbers the second as the others do.
    other = ImageFolder(tmp_path / "images", ("none", "class1", "class0"))
    np.testing.assert_array_equal(other.rows(np.array([0, 22]))["label"], [2, 1])
    with pytest.raises(DataError, match="'class1' is none of the classes class0"):
        len(ImageFolder(tmp_path / "images", ("class0",)))
    flat = ImageFolder(tmp_path / "images" / "class0")
    assert list(flat.columns) == ["image", "path"]
    assert flat.class_names == ()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "class0").symlink_to(tmp_path / "images" / "class0")
    (tmp_path / "linked" / "class1").symlink_to(tmp_path / "images" / "class1", target_is_directory=True)
    assert _listed(ImageFolder(tmp_path / "linked").rows(np.array([0, 22]))) == _listed(rows)
    (tmp_path / "images" / "loose.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"loose.png lies beside the folders"):
        len(ImageFolder(tmp_path / "images"))
    (tmp_path / "images" / "loose.png").unlink()
    lost = ImageFolder(tmp_path / "images")
    assert len(lost) == COUNT
    (tmp_path / "images" / "class0" / "00.PNG").unlink()
    with pytest.raises(DataError, match=r"00.PNG cannot be read"):
        lost.rows(np.array([0]))


def test_a_folder_of_images_becomes_batches_and_a_broken_file_is_named(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/3.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.fromarray(np.full((4, 5, 3), 10 * number, np.uint8)).save(tmp_path / name)
    pictures = Dataset.of(tmp_path).map(DecodeImage(), "image")
    batch = pictures.batch(4).first()
    np.testing.assert_array_equal(batch["image"][:3, 0, 0, 0], [0, 10, 20])
    np.testing.assert_array_equal(batch["label"][:3], [0, 0, 1])
    (tmp_path / "cat" / "2.png").write_bytes((tmp_path / "cat" / "2.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"cat/2\.png") as caught:
        list(Dataset.of(tmp_path).map(DecodeImage(), "image"))
    assert caught.value.reason == "image_undecodable"


class Table:
    """What `ArrowSource` uses of an Arrow table, for where there is no Arrow."""

    class Field:
        """A column's name and type."""

        def __init__(self, name: str, kind: str) -> None:
            self.name, self.type = name, kind

    class Values:
        """A column."""

        def __init__(self, values: list[Any]) -> None:
            self.values = values

        def to_pylist(self) -> list[Any]:
            """The values."""
            return self.values

    def __init__(self, columns: Mapping[str, tuple[str, list[Any]]]) -> None:
        self.columns = columns
        self.schema = [Table.Field(name, kind) for name, (kind, _) in columns.items()]
        self.num_rows = len(next(iter(columns.values()))[1])

    def take(self, indices: Any) -> "Table":
        """These rows."""
        return Table({name: (kind, [values[k] for k in indices]) for name, (kind, values) in self.columns.items()})

    def column(self, name: str) -> "Table.Values":
        """One column."""
        return Table.Values(self.columns[name][1])


class ListType:
    """An Arrow type of lists of whole numbers."""

    value_type = "int64"


def test_a_table_by_its_methods() -> None:
    table = Table({"x": ("double", [0.5, None]), "n": ("int32", [1, None]), "s": ("large_string", ["a", "b"])})
    source = open_source(table)
    assert isinstance(source, ArrowSource)
    assert dict(source.columns) == {"x": Column("float64"), "n": Column("int32"), "s": Column("str")}
    assert _listed(source.rows(np.array([0, 0]))) == {"x": [0.5, 0.5], "n": [1, 1], "s": ["a", "a"]}
    with pytest.raises(DataError, match="Row 2, column 'n' is missing"):
        source.rows(np.array([0, 1]))
    holed = ArrowSource(Table({"v": ("list<item: int64>", [[1, 2], [3, None]])}))
    object.__setattr__(next(iter(holed.table.schema)), "type", ListType())
    with pytest.raises(DataError, match="Row 2, column 'v' is missing"):
        holed.rows(np.array([0, 1]))
    with pytest.raises(DataError, match="'t' holds timestamp"):
        dict(ArrowSource(Table({"t": ("timestamp[s]", [])})).columns)


def test_a_real_arrow_table() -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = arrow.table(
        {
            "n": arrow.array([1, 2, 3], arrow.int16()),
            "x": arrow.array([0.5, None, 2], arrow.float32()),
            "b": arrow.array([True, False, True]),
            "s": arrow.array(["a", "é", ""]),
            "c": arrow.array(["u", "v", "u"]).dictionary_encode(),
            "raw": arrow.array([b"\0", b"", b"1"]),
            "vector": arrow.array([[1, 2], [3, 4], [5, 6]], arrow.list_(arrow.int64(), 2)),
            "words": arrow.array([[1], [], [2, 3]], arrow.list_(arrow.int32())),
        }
    )
    source = open_source(table)
    assert dict(source.columns) == {
        "n": Column("int16"), "x": Column("float32"), "b": Column("bool"), "s": Column("str"), "c": Column("str"),
        "raw": Column("bytes"), "vector": Column("int64", (2,)), "words": Column("int32", (None,)),
    }  # fmt: skip
    rows = source.rows(np.array([2, 1]))
    np.testing.assert_array_equal(rows["x"], np.array([2, np.nan], np.float32))
    np.testing.assert_array_equal(rows["vector"], [[5, 6], [3, 4]])
    assert [value.tolist() for value in rows["words"]] == [[2, 3], []]
    assert (rows["s"], rows["c"], rows["raw"]) == (["", "é"], ["u", "v"], [b"1", b""])
    assert _listed(pickle.loads(pickle.dumps(source)).rows(np.array([0])))["n"] == [1]


def test_a_real_arrow_table_of_a_csv_file_has_the_rows_of_the_csv_source(tmp_path: Path) -> None:
    read_csv = pytest.importorskip("pyarrow.csv", reason="pyarrow is not installed").read_csv
    path = tmp_path / "people.csv"
    path.write_text('n,x,gap,name\n1,0.5,,"a, ""b"""\n-2,1e-3,2.5,é\n3,9007199254740993,inf,\n')
    plain, arrow = open_source(path), open_source(read_csv(path))
    assert dict(plain.columns) == dict(arrow.columns)
    for order in ([0, 1, 2], [2, 0, 0]):
        assert str(_listed(plain.rows(np.array(order)))) == str(_listed(arrow.rows(np.array(order))))


class Value:
    """A type of Hugging Face's."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class Data:
    """What `HuggingFaceSource` uses of a dataset, for where there is none."""

    def __init__(self, features: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
        self.features, self.listed = features, rows

    def __len__(self) -> int:
        return len(self.listed)

    def with_format(self, type: str | None) -> "Data":
        """Plain values."""
        assert type is None
        return self

    def __getitem__(self, indices: list[int]) -> dict[str, list[Any]]:
        return {name: [self.listed[k][name] for k in indices] for name in self.features}


def test_a_dataset_by_its_methods() -> None:
    source = open_source(Data({"text": Value("string"), "label": Value("int64")}, [{"text": "a", "label": 3}]))
    assert isinstance(source, HuggingFaceSource)
    assert dict(source.columns) == {"text": Column("str"), "label": Column("int64")}
    assert _listed(source.rows(np.array([0, 0]))) == {"text": ["a", "a"], "label": [3, 3]}


def test_arrays_of_a_dataset_have_their_shape_and_images_may_be_files(tmp_path: Path) -> None:
    class Image:
        decode = False

    grid, path = Value("int32"), tmp_path / "a.png"
    object.__setattr__(grid, "shape", (2, 2))
    path.write_bytes(b"of the file")
    rows = [{"grid": [[1, 2], [3, 4]], "image": {"bytes": None, "path": str(path)}}]
    source = HuggingFaceSource(Data({"grid": grid, "image": Image()}, rows))
    assert dict(source.columns) == {"grid": Column("int32", (2, 2)), "image": Column("bytes")}
    found = source.rows(np.array([0]))
    assert np.asarray(found["grid"]).tolist() == [[[1, 2], [3, 4]]]
    assert found["image"] == [b"of the file"]
    path.unlink()
    with pytest.raises(DataError, match=r"a\.png cannot be read"):
        source.rows(np.array([0]))


def test_a_real_dataset() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "x": datasets.Value("float32"),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "image": datasets.Image(decode=False),
        }
    )
    given = {"text": ["a", "b"], "label": [1, 0], "x": [0.5, None], "tokens": [[1, 2], []]}
    data = datasets.Dataset.from_dict({**given, "image": [{"bytes": b"1", "path": None}] * 2}, features=features)
    source = open_source(data.with_format("numpy"))
    assert dict(source.columns) == {
        "text": Column("str"), "label": Column("int64"), "x": Column("float32"), "tokens": Column("int32", (None,)),
        "image": Column("bytes"),
    }  # fmt: skip
    rows = source.rows(np.array([1, 0]))
    assert (rows["text"], rows["image"]) == (["b", "a"], [b"1", b"1"])
    np.testing.assert_array_equal(rows["x"], np.array([np.nan, 0.5], np.float32))
    assert [value.tolist() for value in rows["tokens"]] == [[], [1, 2]]
    with pytest.raises(DataError, match="'image' holds decoded images.*decode=False"):
        dict(open_source(data.cast_column("image", datasets.Image())).columns)


def test_sources_load_no_library_that_they_may_do_without() -> None:
    code = "import sys, coterie.compute.data.sources.opening; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"PIL", "pyarrow", "datasets", "pandas", "onnx", "onnxruntime", "torch"} & set(loaded.stdout.split())


def test_real_text_and_arrays(data_dir: Path) -> None:
    roles = JsonlSource(data_dir / "shakespeare.jsonl.gz")
    assert len(roles) == 296
    assert {name: column.dtype for name, column in roles.columns.items()} == {
        "play": "str", "speaker": "str", "n_speeches": "int64", "n_lines": "int64", "text": "str",
    }  # fmt: skip
    rows = roles.rows(np.arange(296))
    assert (int(np.sum(np.asarray(rows["n_lines"]))), sum(len(text) for text in rows["text"])) == (24026, 930484)
    digits = NpzSource(data_dir / "mnist.npz", {"x": "x_test", "y": "y_test"})
    assert dict(digits.columns) == {"x": Column("uint8", (28, 28)), "y": Column("uint8")}
    assert list(digits.rows(np.arange(4))["y"]) == [7, 2, 1, 0]
    assert len(CsvSource(data_dir / "heart" / "va.csv")) == 200
    assert isinstance(RecordSource("absent.rec"), Source)


def test_a_class_that_has_all_of_a_source_but_its_base_is_told_so() -> None:
    class Mine:
        """Rows of a person who read that a source has these three."""

        columns: Mapping[str, Column] = {}

        def __len__(self) -> int:
            return 0

        def rows(self, indices: object) -> dict[str, object]:
            raise NotImplementedError(str(indices))

    with pytest.raises(DataError, match="A Mine is no source of rows") as caught:
        open_source(Mine())
    assert "coterie.compute.data.Source" in str(caught.value.hint)
