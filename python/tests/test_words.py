"""What is said to a Python program has Python's names, not Rust's."""

import subprocess
import sys
import time

import numpy as np
import pinfeed
import pytest
from pinfeed import DataLoader


def is_pythons(text):
    text = str(text)
    assert "::" not in text and "`get`" not in text, text
    return text


class Slow:
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return np.zeros(4, np.float32)


def lengths(index):
    return np.zeros(3 + index % 2, np.float32)


def test_the_verdict_of_a_loop_that_waits_for_the_programs_own_python():
    loader = DataLoader(Slow(0.002), batch_size=4, num_workers=2)
    for _ in loader:
        pass
    said = is_pythons(loader.stats())
    assert loader.stats().limit == "Loading" and "raise num_workers" in said and "interpreter" in said


@pytest.mark.parametrize("num_workers", [1, "auto"])
def test_the_verdicts_of_pictures_and_tables(pictures, num_workers):
    table = pinfeed.TensorDataset(np.zeros((4000, 64), np.float32))
    for data in (pinfeed.ImageFolder(pictures, pinfeed.transforms.train(64)), table):
        loader = DataLoader(data, batch_size=8, num_workers=num_workers)
        for _ in range(3):
            for _ in loader:
                pass
        is_pythons(loader.total_stats())


def test_nothing_was_measured():
    loader = DataLoader(Slow(0), batch_size=4)
    assert is_pythons(loader.stats()).endswith("iterate the loader first.")


def test_samples_of_unlike_shapes():
    loader = DataLoader(pinfeed.TensorDataset(np.arange(8)).map(lambda sample: lengths(int(sample[0]))), batch_size=4)
    with pytest.raises(pinfeed.Error, match="collate_fn") as failed:
        next(iter(loader))
    is_pythons(failed.value)


def test_pictures_of_unlike_sizes(pictures):
    sizes = pinfeed.ImageFolder(pictures)
    with pytest.raises(pinfeed.Error) as failed:
        for _ in DataLoader(sizes, batch_size=24):
            pass
    assert "transform" in is_pythons(failed.value)


class WantsPil:
    __module__ = "torchvision.transforms.transforms"  # as torchvision's Resize does

    def __call__(self, picture):
        raise TypeError(f"img should be PIL Image. Got {type(picture)}")


def test_a_transform_of_torchvisions_that_wants_a_pil_image(pictures):
    loader = DataLoader(pinfeed.ImageFolder(pictures, WantsPil()), batch_size=4)
    with pytest.raises(TypeError, match="PIL Image") as failed:
        next(iter(loader))
    assert any("ToPILImage" in note for note in failed.value.__notes__)


def test_a_folder_without_classes(tmp_path):
    with pytest.raises(pinfeed.Error, match="pinfeed.ImageFolder.from_list") as failed:
        pinfeed.ImageFolder(tmp_path)
    is_pythons(failed.value)


def test_a_machine_without_a_gpu():
    # (In a process of its own, from which a GPU is hidden.)
    program = "import numpy, pinfeed; pinfeed.DataLoader(pinfeed.TensorDataset(numpy.zeros(4)), device='cuda')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1 and "Error" in done.stderr
    is_pythons(done.stderr)


@pytest.mark.parametrize(("format", "magic", "advised"), [("raw", 20240520, "llm.c"), ("llm.c", 7, "raw")])
def test_tokens_of_another_format(tmp_path, format, magic, advised):
    file = tmp_path / "tokens.bin"
    np.array([magic, 1] + [0] * 254, np.uint32).tofile(file)
    with pytest.raises(pinfeed.Error, match=f'format="{advised}"') as failed:
        pinfeed.TokenDataset(file, 4, format=format)
    is_pythons(failed.value)
