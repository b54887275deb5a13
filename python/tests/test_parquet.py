"""Parquet files: beside pyarrow's answer, and that of Hugging Face's `datasets`."""

import datetime
import decimal
import io
import itertools
import json
import os
import pathlib
import pickle

import numpy as np
import pytest

import pinfeed
from pinfeed import DataLoader, Parquet

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
FIXTURES = pathlib.Path(__file__).parents[2] / "parquet" / "tests" / "fixtures"
ROWS = 1000


def loaded(data, batch_size=64, **options):
    return list(DataLoader(data, batch_size=batch_size, output="numpy", **options))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A folder with three files of numbers and text, in row groups of 90, by pyarrow; and its table."""
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(11)
    columns = {"id": np.arange(ROWS)}
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        limits = np.iinfo(name)
        columns[name] = rng.integers(limits.min, limits.max, ROWS, dtype=name, endpoint=True)
    for name in ("float16", "float32", "float64"):
        columns[name] = rng.standard_normal(ROWS).astype(name)
    columns["bool"] = rng.random(ROWS) < 0.5
    columns["text"] = [f"row {number} \N{GREEK SMALL LETTER ALPHA}" for number in range(ROWS)]
    columns["bytes"] = [bytes([number % 256] * (number % 5)) for number in range(ROWS)]
    columns["day"] = [datetime.date(2000, 1, 1) + datetime.timedelta(days=number) for number in range(ROWS)]
    columns["time"] = pa.array([1_000 * number for number in range(ROWS)], pa.timestamp("us"))
    columns["price"] = [decimal.Decimal(number) / 4 for number in range(ROWS)]
    columns["vector"] = list(rng.standard_normal((ROWS, 3)))
    columns["matrix"] = rng.integers(0, 9, (ROWS, 2, 2)).tolist()
    table = pa.table(columns)
    for number, begin in enumerate((0, 400, 700)):
        part = table.slice(begin, (400, 300, 300)[number])
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=90, write_page_index=number == 1)
    return folder, table


def expected(table, name):
    """What pyarrow has in a column, as batches have it."""
    column = table[name].combine_chunks()
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32()).to_numpy().astype(np.int64)
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_numpy()
    if pa.types.is_decimal(column.type):
        return column.cast(pa.float64()).to_numpy()
    if pa.types.is_list(column.type):
        return np.array(column.to_pylist())
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column.to_pylist()
    return column.to_numpy(zero_copy_only=False)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_each_type_is_what_pyarrow_reads(numbers, num_workers):
    folder, table = numbers
    data = Parquet(folder)
    assert len(data) == ROWS and data.column_names == table.column_names
    assert data.files == [("part-0.parquet", 400), ("part-1.parquet", 300), ("part-2.parquet", 300)]
    batches = loaded(data, num_workers=num_workers)
    assert [len(batch["id"]) for batch in batches] == [64] * 15 + [40]
    for name in table.column_names:
        wanted = expected(table, name)
        got = [value for batch in batches for value in batch[name]]
        if isinstance(wanted, list):
            assert got == wanted
            continue
        got = np.stack(got)
        assert got.dtype == wanted.dtype and got.shape == wanted.shape, name
        assert np.array_equal(got.view(np.uint8), wanted.view(np.uint8)) if got.dtype.kind != "b" else np.array_equal(got, wanted), name


def test_torch_tensors_have_the_columns_types(numbers):
    torch = pytest.importorskip("torch")
    folder, table = numbers
    names = ["int8", "int64", "uint8", "uint64", "float16", "float32", "bool"]
    batch = next(iter(DataLoader(Parquet(folder, names), batch_size=ROWS, output="torch")))
    for name in names:
        assert str(batch[name].dtype) == f"torch.{name}"
        assert np.array_equal(batch[name].numpy(), expected(table, name))
    sample = Parquet(folder, names)[7]
    assert {name: str(value.dtype) for name, value in sample.items()} == {name: f"torch.{name}" for name in names}
    assert torch.equal(sample["uint64"], batch["uint64"][7])


def test_files_of_many_writers_settings_are_read_as_pyarrow_reads_them():
    files = sorted(FIXTURES.glob("codecs/*.parquet"))
    assert len(files) > 4
    for file in [*files, FIXTURES / "types-v2.parquet", FIXTURES / "paged.parquet", FIXTURES / "dense.parquet", FIXTURES / "narrow.parquet"]:
        table = pq.read_table(file)
        names = [field.name for field in table.schema if field.type in (pa.int64(), pa.int32(), pa.float64(), pa.string()) and not table[field.name].null_count]
        batch = loaded(Parquet(file, names), batch_size=len(table))[0]
        for name in names:
            assert list(batch[name]) == table[name].to_pylist(), (file, name)


def test_rows_are_those_that_pyarrow_reads_one_by_one():
    # (The same file, and pyarrow's answer, as the Rust package's tests have.)
    wanted = json.loads((FIXTURES / "types.json").read_text())
    table = pq.read_table(FIXTURES / "types.parquet")
    plain = [name for name in ("id", "a", "b", "tokens") if not table[name].null_count]
    data = Parquet(FIXTURES / "types.parquet", plain)
    for index in range(len(data)):
        sample = data[index]
        for name in plain:
            assert np.array_equal(np.asarray(sample[name]), np.asarray(wanted[name][index], np.asarray(sample[name]).dtype)), (index, name)


def test_samples_are_dicts_or_tuples_of_columns_and_groups(numbers):
    folder, table = numbers
    pair = loaded(Parquet(folder, ["float32", "id"], as_tuple=True))[0]
    assert isinstance(pair, list) and np.array_equal(pair[0], expected(table, "float32")[:64]) and pair[1].tolist() == list(range(64))
    data = Parquet(folder, {"x": ["float32", "float64"], "y": "id", "again": "id"}, dtype={"x": "float32", "again": np.float64})
    assert data.column_names == ["x", "y", "again"]
    batch = loaded(data)[0]
    assert batch["x"].dtype == np.float32 and batch["x"].shape == (64, 2) and batch["again"].dtype == np.float64
    both = np.stack([expected(table, "float32"), expected(table, "float64").astype(np.float32)], axis=1)
    assert np.array_equal(batch["x"], both[:64])
    assert batch["y"].tolist() == batch["again"].tolist() == list(range(64))


@pytest.mark.parametrize(
    "filters",
    [
        [("id", ">=", 123)],
        [("id", ">", 100), ("id", "<", 905)],
        [("id", "<=", np.int64(77))],
        [("text", "=", "row 612 \N{GREEK SMALL LETTER ALPHA}")],
        [("bool", "==", True), ("float64", ">", 0.5)],
        [("int8", "in", [1, 2, 3, 4])],
        [("id", "in", {5, 500, 999})],
        [("float32", "<", 0)],
    ],
)
def test_the_rows_that_meet_conditions_are_pyarrows(numbers, filters):
    folder, _ = numbers
    wanted = pq.read_table(folder, columns=["id"], filters=filters)["id"].to_pylist()
    batches = loaded(Parquet(folder, ["id"], filters=filters), num_workers=2)
    assert [number for batch in batches for number in batch["id"].tolist()] == wanted and wanted


def test_folders_that_are_called_after_values_are_columns(tmp_path):
    table = pa.table({"year": [2023, 2023, 2024], "lang": ["de", "en", "de"], "x": [1, 2, 3]})
    pq.write_to_dataset(table, tmp_path, partition_cols=["year", "lang"])
    batches = loaded(Parquet(tmp_path, ["x", "year", "lang"]), batch_size=3)
    assert batches[0]["lang"] == ["de", "en", "de"]
    assert batches[0]["year"].dtype == np.int64 and batches[0]["year"].tolist() == [2023, 2023, 2024]
    assert loaded(Parquet(tmp_path, ["x"], filters=[("year", ">", 2023)]))[0]["x"].tolist() == [3]
    assert loaded(Parquet(f"{tmp_path}/**/*.parquet", ["x"]), batch_size=3)[0]["x"].tolist() == [1, 2, 3]


def test_a_shuffled_epoch_has_each_row_once_on_any_number_of_workers(numbers):
    folder, _ = numbers
    data = Parquet(folder, ["id", "text"], block_bytes=512)

    def order(num_workers, seed=3, epoch=0):
        loader = DataLoader(data, batch_size=64, shuffle=True, seed=seed, num_workers=num_workers, output="numpy")
        loader.set_epoch(epoch)
        batches = list(loader)
        for batch in batches:
            assert batch["text"] == [f"row {number} \N{GREEK SMALL LETTER ALPHA}" for number in batch["id"].tolist()]
        return [number for batch in batches for number in batch["id"].tolist()]

    first = order(0)
    assert sorted(first) == list(range(ROWS)) and first != sorted(first)
    assert order(1) == order(4) == first
    assert order(2, seed=4) != first and order(2, epoch=1) != first
    # Rows of a batch come from several row groups.
    assert len({number // 90 for number in first[:64]}) >= 4


@pytest.mark.parametrize("given", [0, 1, 7, 15])
def test_a_run_goes_on_in_the_middle_of_an_epoch(numbers, given):
    folder, _ = numbers
    make = lambda: Parquet(folder, ["id", "vector"])  # noqa: E731
    whole = [batch["id"].tolist() for batch in loaded(make(), shuffle=True, seed=5, num_workers=2)]
    loader = DataLoader(make(), batch_size=64, shuffle=True, seed=5, num_workers=2, output="numpy")
    iterator = iter(loader)
    first = [next(iterator)["id"].tolist() for _ in range(given)]
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator, loader  # (in the middle of it)
    for num_workers in (0, 3):
        resumed = DataLoader(make(), batch_size=64, shuffle=True, seed=5, num_workers=num_workers, output="numpy")
        for _ in range(2):  # (twice from the same state)
            resumed.load_state_dict(state)
            assert first + [batch["id"].tolist() for batch in resumed] == whole
    with pytest.raises(pinfeed.StateError):
        DataLoader(Parquet(folder, ["id"], filters=[("id", "<", 900)]), batch_size=64, shuffle=True, seed=5).load_state_dict(state)


def test_two_ranks_share_an_epoch_and_one_goes_on_alone(numbers):
    folder, _ = numbers
    data = Parquet(folder, ["id"])
    loaders = [
        DataLoader(data, batch_size=20, shuffle=True, seed=9, num_workers=2, world=pinfeed.World(rank, 2), output="numpy") for rank in range(2)
    ]
    assert len(loaders[0]) == len(loaders[1]) == 25
    seen = [[batch["id"].tolist() for batch in loader] for loader in loaders]
    assert sorted(itertools.chain(*seen[0], *seen[1])) == list(range(ROWS))
    iterators = [iter(loader) for loader in loaders]
    had = [number for iterator in iterators for _ in range(10) for number in next(iterator)["id"].tolist()]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    alone = DataLoader(data, batch_size=40, shuffle=True, seed=9, num_workers=1, output="numpy")
    alone.load_state_dict(states[1])
    rest = [number for batch in alone for number in batch["id"].tolist()]
    assert len(had) == 400 and sorted(had + rest) == list(range(ROWS))


def test_an_epoch_that_is_left_costs_nothing_of_the_next(numbers):
    folder, _ = numbers
    loader = DataLoader(Parquet(folder), batch_size=16, shuffle=True, num_workers=3, output="numpy")
    for taken in (0, 1, 5):
        for _, batch in zip(range(taken), loader):
            assert len(batch["id"]) == 16
    assert sorted(number for batch in loader for number in batch["id"].tolist()) == list(range(ROWS))
    loader.close()


def test_functions_of_the_programs_get_whole_samples(numbers):
    folder, table = numbers
    data = Parquet(folder, ["id", "text", "float32"]).map(lambda sample: (len(sample["text"]), sample["float32"] * 2), output="numpy")
    lengths, doubled = loaded(data, num_workers=2)[0]
    assert lengths.tolist() == [len(text) for text in table["text"].to_pylist()[:64]]
    assert doubled.dtype == np.float32 and np.array_equal(doubled, expected(table, "float32")[:64] * 2)


def test_lists_of_several_lengths_go_through_a_collate_fn(tmp_path):
    tokens = [list(range(length)) for length in (3, 1, 4, 0)]
    pq.write_table(pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32())), "words": [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]}), tmp_path / "a.parquet")
    data = Parquet(tmp_path, ["tokens", "words"])
    with pytest.raises(pinfeed.CollateError, match="shape"):
        loaded(data, batch_size=4)

    def pad(samples):
        rows = [sample["tokens"] for sample in samples]
        padded = np.full((len(rows), max(map(len, rows))), -1, np.int32)
        for row, values in zip(padded, rows):
            row[: len(values)] = values
        return {"tokens": padded, "words": [sample["words"] for sample in samples]}

    batch = loaded(data, batch_size=4, num_workers=2, collate_fn=pad)[0]
    assert batch["tokens"].tolist() == [[0, 1, 2, -1], [0, -1, -1, -1], [0, 1, 2, 3], [-1] * 4]
    assert batch["words"] == [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]
    assert data[2]["tokens"].dtype == pinfeed.TensorDataset(np.zeros(1, np.int32))[0][0].dtype


@pytest.fixture
def holes(tmp_path):
    """Files with nulls."""
    table = pa.table(
        {
            "age": pa.array([1, None, 3], pa.int16()),
            "score": pa.array([0.5, 1.5, None], pa.float32()),
            "name": ["a", None, "c"],
            "raw": pa.array([None, b"b", b"c"], pa.binary()),
            "tokens": [[1, 2], None, [None, 4]],
            "ok": [True, None, False],
        }
    )
    pq.write_table(table, tmp_path / "holes.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("column", "row", "instead"),
    [("age", 1, -7), ("score", 2, float("nan")), ("name", 1, "?"), ("raw", 0, b"none"), ("ok", 1, False)],
)
def test_a_null_is_an_error_that_says_where_and_what_to_do(holes, column, row, instead):
    iterator = iter(DataLoader(Parquet(holes, [column]), batch_size=1, output="numpy"))
    for at in range(3):
        if at != row:
            next(iterator)
            continue
        with pytest.raises(pinfeed.SampleError) as caught:
            next(iterator)
        said = str(caught.value)
        assert "holes.parquet" in said and f"row {row}" in said and f'column "{column}"' in said and f'nulls={{"{column}": ..}}' in said
    got = loaded(Parquet(holes, [column], nulls={column: instead}), batch_size=3)[0][column]
    wanted = pq.read_table(holes, columns=[column])[column].to_pylist()
    wanted[row] = instead
    assert np.array_equal(got, wanted, equal_nan=True) if column == "score" else list(got) == wanted
    kept = loaded(Parquet(holes, [column], filters=[(column, "is not", None)]), batch_size=3)[0][column]
    assert list(kept) == [value for at, value in enumerate(wanted) if at != row]


def test_a_null_in_a_list_and_in_its_place(holes):
    data = Parquet(holes, ["tokens"], nulls={"tokens": []})
    assert np.asarray(data[0]["tokens"]).tolist() == [1, 2] and len(data[1]["tokens"]) == 0
    with pytest.raises(pinfeed.Error, match=r"holes.parquet, row 2, column .tokens.: a value in its list is null"):
        data[2]
    both = loaded(Parquet(holes, {"x": ["age", "score"]}, dtype={"x": "float64"}, nulls={"age": 0, "score": -1}), batch_size=3)[0]["x"]
    assert both.tolist() == [[1, 0.5], [0, 1.5], [3, -1]]


def test_what_fits_no_type_is_an_error_of_its_row(tmp_path):
    pq.write_table(pa.table({"x": [1, 300, 3]}), tmp_path / "a.parquet")
    loader = DataLoader(Parquet(tmp_path, dtype={"x": "uint8"}), batch_size=1, output="numpy")
    iterator = iter(loader)
    assert next(iterator)["x"].tolist() == [1]
    with pytest.raises(pinfeed.SampleError, match=r"a.parquet, row 1, column .x.: it is 300 \(int64\), which u8 does not hold"):
        next(iterator)
    assert next(iterator)["x"].tolist() == [3]
    kept = loaded(Parquet(tmp_path, dtype={"x": "uint8"}), batch_size=3, on_error="skip")
    assert kept[0]["x"].tolist() == [1, 3]


def test_broken_files_are_named(numbers, tmp_path):
    folder, _ = numbers
    bytes_of = (folder / "part-0.parquet").read_bytes()

    def of(name, content):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.parquet").write_bytes(content)
        return tmp_path / name

    with pytest.raises(pinfeed.NotFoundError, match="nowhere.parquet"):
        Parquet(tmp_path / "nowhere.parquet")
    with pytest.raises(pinfeed.DataSetError, match="there is no Parquet file in"):
        (tmp_path / "none").mkdir()
        Parquet(tmp_path / "none")
    for name, content, why in [
        ("short", bytes_of[:-100], "cut off"),
        ("empty", b"", "it has no bytes"),
        ("other", b"a,b\n1,2\n" * 10, "no Parquet file"),
    ]:
        with pytest.raises(pinfeed.DataSetError, match=rf"x\.parquet: .*{why}"):
            Parquet(of(name, content))
    with pytest.raises(pinfeed.DataSetError, match=r'part-0.parquet, column "nothing": there is no such column, but "id"'):
        Parquet(folder, ["nothing"])
    # A page that was damaged: its rows are errors, and the epoch goes on.
    damaged = bytearray(bytes_of)
    metadata = pq.read_metadata(folder / "part-0.parquet")
    column = metadata.row_group(1).column(metadata.schema.names.index("text"))
    damaged[column.data_page_offset : column.data_page_offset + 300] = bytes(300)
    data = Parquet(of("damaged", bytes(damaged)), ["id", "text", "vector", "matrix", "float64"])
    iterator, good, said = iter(DataLoader(data, batch_size=10, num_workers=2, output="numpy")), 0, []
    while True:
        try:
            good += len(next(iterator)["id"])
        except StopIteration:
            break
        except pinfeed.Error as error:
            said.append(str(error))
    assert good == 310 and len(said) == 9 and all("x.parquet" in text and "row group 1" in text for text in said)
    # Files that differ.
    two = of("two", bytes_of)
    pq.write_table(pa.table({"id": ["text"]}), two / "y.parquet")
    with pytest.raises(pinfeed.DataSetError, match=r'y.parquet, column "id": it has the type string here, and int64 in .*x.parquet'):
        Parquet(two, ["id"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"columns": "id"}, "a list of names"),
        ({"columns": ["id", "id"]}, "comes twice"),
        ({"columns": []}, "there is none"),
        ({"columns": {"x": ["id", "text"]}}, "'text' is string, and no number"),
        ({"columns": {"x": ["id", "float32"]}}, "several types"),
        ({"columns": ["text"], "dtype": {"text": "int8"}}, "no number"),
        ({"columns": ["id"], "dtype": {"id": "complex64"}}, "it is one of"),
        ({"columns": ["id"], "dtype": {"text": "int8"}}, "none of id"),
        ({"columns": ["id"], "nulls": {"text": 0}}, "none of id"),
        ({"columns": ["id"], "nulls": {"id": 0.5}}, "int64"),
        ({"columns": ["id"], "nulls": {"id": 2**70}}, "int64"),
        ({"columns": ["id"], "images": ["id"]}, "'id' is int64: a picture is in bytes"),
        ({"columns": ["id"], "images": ["text"]}, "none of"),
        ({"columns": ["id"], "transform": pinfeed.transforms.train(8)}, "no column has pictures"),
        ({"columns": ["id"], "transform": lambda x: x}, "map"),
        ({"columns": ["id"], "filters": [("id", "!=", 3)]}, "the operators are"),
        ({"columns": ["id"], "filters": [("id", "~", 3)]}, "the operators are"),
        ({"columns": ["id"], "filters": [[("id", "==", 3)], [("id", "==", 4)]]}, "ConcatDataset"),
        ({"columns": ["id"], "filters": [("id", "==", None)]}, "compared with"),
        ({"columns": ["id"], "block_bytes": 0}, "block_bytes"),
    ],
)
def test_options_that_mean_nothing_are_refused(numbers, options, why):
    folder, _ = numbers
    with pytest.raises(pinfeed.OptionError, match=why):
        Parquet(folder, **options)


def test_a_filter_of_another_type_names_the_column(numbers):
    folder, _ = numbers
    with pytest.raises(pinfeed.DataSetError, match=r'column "text": it is string, and the filter compares it with a number'):
        Parquet(folder, ["id"], filters=[("text", ">", 3)])
    with pytest.raises(pinfeed.DataSetError, match="there are no rows"):
        Parquet(folder, ["id"], filters=[("id", ">", 10**6)])


def png(pixels):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def painted(tmp_path_factory):
    """Pictures in a column of bytes, and in one of structures; one is broken."""
    folder = tmp_path_factory.mktemp("painted")
    pixels = [np.random.default_rng(number).integers(0, 256, (12, 10, 3), dtype=np.uint8) for number in range(9)]
    files = [png(each) for each in pixels]
    files[5] = files[5][:40]
    pairs = [{"bytes": file, "path": f"pets/{number}.png"} for number, file in enumerate(files)]
    pq.write_table(pa.table({"picture": files, "image": pairs, "label": list(range(9))}), folder / "pets.parquet", row_group_size=4)
    return folder, pixels


def test_pictures_in_bytes_and_in_structures(painted):
    folder, pixels = painted
    raw = Parquet(folder, ["picture", "label"])
    assert isinstance(raw[0]["picture"], bytes)
    for column, options in (("picture", {"images": ["picture"]}), ("image", {})):
        data = Parquet(folder, [column, "label"], as_tuple=True, **options)
        pictures, labels = loaded(data, batch_size=9, on_error=("skip", 1))[0]
        assert labels.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
        for picture, label in zip(pictures, labels):
            assert np.array_equal(picture, pixels[label])
    transform = pinfeed.transforms.Compose([pinfeed.transforms.CenterCrop(8), pinfeed.transforms.ToTensor()])
    batch = loaded(Parquet(folder, ["image", "label"], transform, filters=[("label", "<", 4)]), batch_size=4, num_workers=2)[0]
    wanted = np.stack([each[2:10, 1:9] for each in pixels[:4]]).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    assert np.array_equal(batch["image"], wanted)


@pytest.mark.parametrize(("column", "where"), [("picture", r"pets.parquet \(row 5\)"), ("image", "pets/5.png")])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_broken_picture_is_an_error_of_its_batch(painted, column, where, num_workers):
    folder, _ = painted
    data = Parquet(folder, [column, "label"], pinfeed.transforms.eval(8, resize=8), images=[column])
    iterator = iter(DataLoader(data, batch_size=3, num_workers=num_workers, output="numpy"))
    assert next(iterator)["label"].tolist() == [0, 1, 2]
    with pytest.raises(pinfeed.SampleError, match=where) as caught:
        next(iterator)
    assert caught.value.index == 5 and "pets.parquet" in str(caught.value)
    assert next(iterator)["label"].tolist() == [6, 7, 8]


def test_a_file_that_datasets_wrote(tmp_path):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    pixels = [np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8) for number in range(30)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "text": datasets.Value("string"),
            "embedding": datasets.Sequence(datasets.Value("float32"), length=4),
            "grid": datasets.Array2D((2, 3), "int64"),
            "nested": {"score": datasets.Value("float64"), "tags": datasets.Sequence(datasets.Value("string"))},
        }
    )
    source = datasets.Dataset.from_dict(
        {
            "image": [Image.fromarray(each) for each in pixels],
            "label": [number % 2 for number in range(30)],
            "text": [f"a text of {number}" for number in range(30)],
            "embedding": np.random.default_rng(3).standard_normal((30, 4)).tolist(),
            "grid": np.arange(180).reshape(30, 2, 3).tolist(),
            "nested": [{"score": number / 7, "tags": [f"{number}", "x"]} for number in range(30)],
        },
        features=features,
    )
    source.to_parquet(tmp_path / "train.parquet", batch_size=8)
    data = Parquet(tmp_path / "train.parquet")
    assert data.column_names == ["image", "label", "text", "embedding", "grid", "nested.score", "nested.tags"]
    assert data.features["label"]["names"] == source.features["label"].names
    theirs = source.with_format("numpy")
    for start, batch in zip(range(0, 30, 7), loaded(data, batch_size=7, num_workers=2)):
        wanted = theirs[start : start + 7]
        assert np.array_equal(batch["image"], np.stack(pixels[start : start + 7]))
        assert np.array_equal(batch["label"], wanted["label"]) and batch["text"] == list(wanted["text"])
        assert batch["embedding"].dtype == np.float32 and np.array_equal(batch["embedding"], np.stack(wanted["embedding"]))
        assert np.array_equal(batch["grid"], np.stack(wanted["grid"]))
        assert batch["nested.score"].tolist() == [each["score"] for each in source[start : start + 7]["nested"]]
    few = Parquet(tmp_path / "train.parquet", ["nested", "image"])
    assert few.column_names == ["nested.score", "nested.tags", "image"] and few[3]["nested.tags"] == ["3", "x"]


def test_sound_is_no_picture(tmp_path):
    features = {"info": {"features": {"audio": {"_type": "Audio"}, "label": {"_type": "Value"}}}}
    table = pa.table({"audio": [{"bytes": b"RIFF", "path": "a.wav"}], "label": [1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "a.parquet")
    sample = Parquet(tmp_path)[0]
    assert sample["audio.bytes"] == b"RIFF" and sample["audio.path"] == "a.wav"


def test_the_hubs_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "datasets--org--pets"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123abcd")
    (folder / "snapshots" / "0123abcd" / "data").mkdir(parents=True)
    for split, rows in (("train", 5), ("test", 2)):
        pq.write_table(pa.table({"x": list(range(rows))}), folder / "snapshots/0123abcd/data" / f"{split}-00000-of-00001.parquet")
    data = Parquet.hub("org/pets", "train")
    assert len(data) == 5 and data[4]["x"] == 4 and len(Parquet.hub("org/pets", "test", ["x"])) == 2
    assert len(pickle.loads(pickle.dumps(data))) == 5
    with pytest.raises(pinfeed.DataSetError, match="hf download"):
        Parquet.hub("org/others", "train")
    with pytest.raises(pinfeed.DataSetError, match="valid"):
        Parquet.hub("org/pets", "valid")


def test_parts_and_several_data_sets_together(numbers):
    folder, _ = numbers
    whole = Parquet(folder, ["id"])
    part = pinfeed.Subset(whole, [999, 3, 500])
    assert loaded(part, batch_size=3)[0]["id"].tolist() == [999, 3, 500]
    both = pinfeed.ConcatDataset([part, Parquet(folder, ["id"], filters=[("id", "<", 2)])])
    assert loaded(both, batch_size=5)[0]["id"].tolist() == [999, 3, 500, 0, 1]
    train, valid = pinfeed.random_split(whole, [0.9, 0.1], seed=1)
    seen = [number for part in (train, valid) for batch in loaded(part, num_workers=2) for number in batch["id"].tolist()]
    assert sorted(seen) == list(range(ROWS))
    again = pickle.loads(pickle.dumps(whole))
    assert len(again) == ROWS and again[5]["id"] == 5
    assert os.fspath(folder) in repr(whole.path)


def test_numbers_alone_are_what_they_are_beside_text(numbers):
    # (Rows of numbers alone take a way of their own.)
    folder, table = numbers
    names = ["int8", "uint64", "float16", "float64", "bool"]
    for options in ({"shuffle": True, "seed": 3}, {"drop_last": True, "num_workers": 3}):
        alone, beside = (loaded(Parquet(folder, [*names, *more]), **options) for more in ([], ["text"]))
        for one, other in zip(alone, beside, strict=True):
            assert list(one) == names
            for name in names:
                assert one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
    pair = loaded(Parquet(folder, {"x": ["int8", "bool"], "y": ["id"], "z": "id"}, dtype={"x": "float32"}, as_tuple=True))[0]
    assert [part.shape for part in pair] == [(64, 2), (64,), (64,)]
    assert np.array_equal(pair[0][:, 1], expected(table, "bool")[:64].astype(np.float32))
    # With a function, rows are Python's.
    assert loaded(Parquet(folder, ["id"]).map(lambda row: int(row["id"]) + 1))[0].tolist() == list(range(1, 65))
    assert loaded(Parquet(folder, ["id"]), collate_fn=lambda rows: [int(row["id"]) for row in rows])[0] == list(range(64))


def test_a_table_that_fits_is_read_into_memory(numbers):
    folder, table = numbers
    data = Parquet(folder, {"x": ["float32", "int8"], "y": "id", "ok": "bool"}, dtype={"x": "float64"}, filters=[("id", "<", 500)])
    tensors = data.tensors(output="numpy")
    assert {key: (value.dtype.name, value.shape) for key, value in tensors.items()} == {"x": ("float64", (500, 2)), "y": ("int64", (500,)), "ok": ("bool", (500,))}
    assert np.array_equal(tensors["x"], np.stack([expected(table, "float32"), expected(table, "int8")], 1)[:500])
    assert np.array_equal(tensors["ok"], expected(table, "bool")[:500])
    batch = loaded(pinfeed.TensorDataset(*tensors.values()), batch_size=100)[4]
    assert batch[1].tolist() == list(range(400, 500))
    for names in (["text"], ["vector"], ["uint64"]):
        with pytest.raises(pinfeed.OptionError, match="tensors"):
            Parquet(folder, names).tensors()


def test_a_file_that_is_replaced_is_noticed(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(1000))}), path, row_group_size=100)
    loader = DataLoader(Parquet(path), batch_size=100, output="numpy")
    assert sum(batch["x"].sum() for batch in loader) == 499500
    pq.write_table(pa.table({"x": [0] * 900}), path, row_group_size=50)
    with pytest.raises(pinfeed.Error, match="a.parquet"):
        list(loader)
