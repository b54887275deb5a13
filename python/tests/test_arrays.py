"""Arrays in memory and in files, tokens, and tar shards."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

import pinfeed
from pinfeed import DataLoader

torch = pytest.importorskip("torch")

TYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_arrays(name, num_workers):
    array = (np.arange(60) % 7).astype(name).reshape(20, 3)
    data = pinfeed.TensorDataset(array, torch.arange(20))
    theirs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(array), torch.arange(20)), batch_size=6)
    for (x, y), (their_x, their_y) in zip(DataLoader(data, batch_size=6, num_workers=num_workers), theirs, strict=True):
        assert x.dtype == their_x.dtype and torch.equal(x, their_x) and torch.equal(y, their_y)
    (x, y) = next(iter(DataLoader(data, batch_size=20, output="numpy")))
    assert x.dtype == array.dtype and np.array_equal(x, array)
    assert np.array_equal(data[-1][0], array[-1])


def test_arrays_are_read_where_they_lie():
    array = np.zeros((10, 4), np.float32)
    data = pinfeed.TensorDataset(array, array[::2].repeat(2, 0).T.reshape(4, 10).T)  # (the second is copied)
    array[:] = 3
    x, y = next(iter(DataLoader(data, batch_size=10)))
    assert x.unique().tolist() == [3] and y.unique().tolist() == [0]
    for wrong in ([], [np.zeros(3), np.zeros(4)], [np.float32(3)]):
        with pytest.raises(pinfeed.OptionError, match="TensorDataset"):
            pinfeed.TensorDataset(*wrong)
    with pytest.raises(TypeError, match="argument 0"):
        pinfeed.TensorDataset([1, 2])


def test_files_of_arrays(tmp_path):
    x, y = np.random.default_rng(1).random((30, 5), np.float32), np.arange(30)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    opened = pinfeed.npy(tmp_path / "x.npy")
    assert (opened.shape, opened.dtype, len(opened)) == ([30, 5], "float32", 30)
    assert np.array_equal(opened.numpy(), x)
    named = pinfeed.npz(tmp_path / "both.npz")
    assert list(named) == ["x", "y"]
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for first in (opened, named["x"], mapped):
        data = pinfeed.TensorDataset(first, named["y"])
        for _ in range(2):
            batches = list(DataLoader(data, batch_size=8, shuffle=True, num_workers=2, output="numpy"))
            order = np.concatenate([batch[1] for batch in batches])
            assert sorted(order) == list(range(30))
            assert np.array_equal(np.concatenate([batch[0] for batch in batches]), x[order])
    with pytest.raises(FileNotFoundError):
        pinfeed.npy(tmp_path / "nowhere.npy")
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"x": x}, tmp_path / "x.safetensors")
    assert np.array_equal(pinfeed.safetensors(tmp_path / "x.safetensors")["x"].numpy(), x)


def test_windows_of_tokens(tmp_path):
    tokens = np.arange(1000, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    data = pinfeed.TokenDataset(tmp_path / "train.bin", 64)
    inputs, targets = next(iter(DataLoader(data, batch_size=len(data))))
    assert inputs.dtype == torch.int64 and inputs.shape[1] == 64
    assert torch.equal(inputs + 1, targets)
    assert inputs[:, 0].tolist() == list(range(0, 64 * len(data), 64))
    dense = pinfeed.TokenDataset(tmp_path / "train.bin", 64, stride=1)
    assert len(dense) == 1000 - 64
    assert dense[5][0].tolist() == list(range(5, 69))
    with pytest.raises(pinfeed.OptionError, match="uint16"):
        pinfeed.TokenDataset(tmp_path / "train.bin", 64, dtype="float32")
    with pytest.raises(pinfeed.OptionError, match="megatron"):
        pinfeed.TokenDataset(tmp_path / "train.bin", 64, format="jsonl")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        with tarfile.open(root / f"train-{shard:04}.tar", "w") as tar:
            for number in range(8):
                label = shard * 8 + number
                picture = io.BytesIO()
                Image.new("RGB", (40 + number, 40), (label, 2 * label, 255 - label)).save(picture, "png")
                array = io.BytesIO()
                np.save(array, np.full(3, label, np.float32))
                fields = {
                    "png": picture.getvalue(),
                    "cls": str(label).encode(),
                    "txt": f"caption {label}".encode(),
                    "json": json.dumps({"area": label / 2}).encode(),
                    "npy": array.getvalue(),
                    "bin": bytes([label]),
                }
                for extension, content in fields.items():
                    info = tarfile.TarInfo(f"{label:05}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return root


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shards(shards, num_workers):
    fields = ["__key__", "jpg;png", "cls", "txt", "json", "npy", "bin"]
    steps = [pinfeed.transforms.CenterCrop(32), pinfeed.transforms.ToTensor()]
    data = pinfeed.WebDataset(shards / "train-{0000..0002}.tar", fields, pinfeed.transforms.Compose(steps))
    assert len(data) == 24
    for _ in range(2):
        key, image, label, text, meta, array, raw = next(iter(DataLoader(data, batch_size=24, num_workers=num_workers)))
        labels = list(range(24))
        assert label.tolist() == labels and key == [f"{label:05}" for label in labels]
        assert image.shape == (24, 3, 32, 32) and torch.equal(image[:, 0, 0, 0], torch.tensor(labels) / 255)
        assert text == [f"caption {label}" for label in labels] and raw == [bytes([label]) for label in labels]
        assert meta["area"].tolist() == [label / 2 for label in labels]
        assert array[:, 0].tolist() == labels


def test_shards_are_shuffled_and_resumed(shards):
    def made(num_workers):
        return DataLoader(pinfeed.WebDataset(f"{shards}/train-{{0000..0002}}.tar", ["cls"]), batch_size=4, shuffle=True, num_workers=num_workers)

    loader = made(2)
    whole = [batch[0].tolist() for batch in loader]
    assert sorted(sum(whole, [])) == list(range(24)) and sum(whole, []) != list(range(24))
    loader.set_epoch(0)
    iterator = iter(loader)
    assert [next(iterator)[0].tolist() for _ in range(2)] == whole[:2]
    again = made(0)
    again.load_state_dict(loader.state_dict())
    assert [batch[0].tolist() for batch in again] == whole[2:]
    def of_rank(rank, size, tracks):
        data = pinfeed.WebDataset(f"{shards}/train-{{0000..0002}}.tar", ["cls"])
        loader = DataLoader(data, batch_size=4 // size, shuffle=True, tracks=tracks, world=pinfeed.World(rank, size))
        return [batch[0].tolist() for batch in loader]

    # One order, whatever the number of ranks; another with other tracks.
    alone = of_rank(0, 1, 2)
    halves = zip(of_rank(0, 2, 2), of_rank(1, 2, 2))
    assert [sorted(first + second) for first, second in halves] == [sorted(batch) for batch in alone]
    assert sorted(sum(alone, [])) == list(range(24)) and alone != of_rank(0, 1, 1)
    for options, match in (({"tracks": 0, "shuffle": True}, "^`tracks`: "), ({"tracks": 4}, "shuffle=True")):
        with pytest.raises(pinfeed.OptionError, match=match):
            DataLoader(pinfeed.WebDataset(f"{shards}/train-0000.tar", ["cls"]), **options)
    with pytest.raises(pinfeed.OptionError, match="no blocks"):
        DataLoader(pinfeed.TensorDataset(np.zeros(8)), shuffle=True, tracks=4)
    with pytest.raises(pinfeed.Error, match="train-0003.tar"):
        pinfeed.WebDataset(f"{shards}/train-{{0000..0003}}.tar")
    with pytest.raises(pinfeed.Error, match="wav"):
        list(DataLoader(pinfeed.WebDataset(f"{shards}/train-0000.tar", ["wav"])))
