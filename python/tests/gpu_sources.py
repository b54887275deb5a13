"""On a machine with a GPU: batches of Parquet files and of iterables are there what they are on the host. `python python/tests/gpu_sources.py`
needs torch, pyarrow and Pillow; without a GPU, it compares the host with itself."""

import io
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

import pinfeed
from pinfeed import transforms as T

DEVICE = "cuda" if torch.cuda.is_available() else None


class Stream:
    def __iter__(self):
        for number in range(300):
            yield {"x": torch.full((1000,), float(number)), "y": number, "name": f"{number}"}


def host(value):
    """A batch as NumPy has it."""
    if isinstance(value, dict):
        return {key: host(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [host(part) for part in value]
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def same(one, other, within):
    if isinstance(one, (dict, list)):
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            same(one[key], other[key], within)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.allclose(one, other, rtol=0, atol=within) if one.dtype.kind == "f" else np.array_equal(one, other)
    else:
        assert one == other


def compare(what, make, within=0.0, **options):
    options = {"batch_size": 16, "num_workers": 3, "output": "torch", **options}
    expected = [host(batch) for batch in pinfeed.DataLoader(make(), **options)]
    loader = pinfeed.DataLoader(make(), device=DEVICE, **options)
    for _ in range(2):
        loader.set_epoch(0)
        got = [host(batch) for batch in loader]
        assert len(got) == len(expected) > 0
        for one, other in zip(got, expected):
            same(one, other, within)
    # In the middle of an epoch, from a state, and a loader that is left there.
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = pinfeed.DataLoader(make(), device=DEVICE, **options)
    resumed.load_state_dict(loader.state_dict())
    del iterator, loader
    for one, other in zip(resumed, expected[2:], strict=True):
        same(host(one), other, within)
    print(f"{what}: {len(expected)} batches are the same on {DEVICE or 'the host'}")


with tempfile.TemporaryDirectory() as folder:
    rng = np.random.default_rng(1)
    pq.write_table(pa.table({"a": rng.random(500, np.float32), "b": rng.random(500, np.float32), "y": np.arange(500)}), f"{folder}/numbers.parquet", row_group_size=60)
    pictures = []
    for number in range(100):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (50, 60, 3), dtype=np.uint8)).save(file, "JPEG" if number % 2 else "PNG")
        pictures.append({"image": {"bytes": file.getvalue(), "path": f"{number}.jpg"}, "label": number, "text": f"{number}"})
    pq.write_table(pa.Table.from_pylist(pictures), f"{folder}/pictures.parquet", row_group_size=30)

    transform = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)])
    compare("numbers", lambda: pinfeed.Parquet(f"{folder}/numbers.parquet", {"x": ["a", "b"], "y": "y"}), shuffle=True, seed=3)
    compare("pictures", lambda: pinfeed.Parquet(f"{folder}/pictures.parquet", ["image", "label", "text"], transform), 1e-5, shuffle=True, seed=3)
    compare("an iterable", Stream)
