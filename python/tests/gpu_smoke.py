"""What is run on a machine with a GPU, with the wheel installed: `python gpu_smoke.py [FOLDER OF PICTURES]`. It asserts, and prints what it measured.

It needs torch with CUDA. Each check says its name; the last line is "all is well".
"""

import gc
import sys
import tempfile
import time
import traceback

import numpy as np
import torch
from PIL import Image

import pinfeed
from pinfeed import DataLoader, ImageFolder, doctor
from pinfeed import transforms as T

DEVICE = torch.device("cuda:0")


FAILED = []


def check(function, *arguments):
    """Runs it, and says what it said. One that fails is named at the end; the others run all the same."""
    begun = time.perf_counter()
    try:
        said = function(*arguments)
        torch.cuda.synchronize()
    except Exception:
        traceback.print_exc()
        FAILED.append(function.__name__)
        said = "FAILED"
    print(f"{function.__name__}: {time.perf_counter() - begun:.2f} s{'' if said is None else f', {said}'}", flush=True)


def pictures(root, count=96):
    rng = np.random.default_rng(3)
    for label in range(3):
        folder = f"{root}/{label}"
        __import__("os").makedirs(folder)
        for number in range(count // 3):
            noise = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize((400, 300), Image.Resampling.BICUBIC)
            noise.save(f"{folder}/{number}.jpg", quality=90)
    return root


def the_same_values_as_on_the_host():
    data = pinfeed.TensorDataset(np.arange(40_000, dtype=np.float32).reshape(1000, 40), np.arange(1000))
    for workers in (0, 4):
        host = list(DataLoader(data, batch_size=64, shuffle=True, num_workers=workers))
        there = list(DataLoader(data, batch_size=64, shuffle=True, num_workers=workers, device=DEVICE))
        assert len(host) == len(there)
        for (x, y), (x_there, y_there) in zip(host, there):
            assert x_there.device == y_there.device == DEVICE and x_there.dtype == x.dtype and y_there.dtype == y.dtype
            assert torch.equal(x, x_there.cpu()) and torch.equal(y, y_there.cpu())


def all_types():
    for name in ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"):
        data = pinfeed.TensorDataset((np.arange(60) % 7).astype(name).reshape(20, 3))
        (host,), (there,) = next(iter(DataLoader(data, batch_size=20))), next(iter(DataLoader(data, batch_size=20, device="cuda")))
        assert host.dtype == there.dtype and torch.equal(host, there.cpu()), name


def pictures_are_normalized_on_the_device(root):
    for dtype, tolerance in (("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2), ("uint8", 0)):
        for channels_last in (False, True):
            if dtype == "uint8" and channels_last:
                continue
            data = ImageFolder(root, T.eval(64, dtype=dtype, channels_last=channels_last))
            for (host, labels), (there, labels_there) in zip(DataLoader(data, batch_size=32), DataLoader(data, batch_size=32, num_workers=4, device="cuda")):
                assert host.dtype == there.dtype and host.shape == there.shape
                assert (host.float() - there.cpu().float()).abs().max() <= tolerance
                assert torch.equal(labels, labels_there.cpu())


def own_data_sets_and_collate_functions():
    class Own:
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return {"x": np.full((3, 5), index, np.float32), "name": f"{index}", "y": index}

    for options in ({}, {"collate_fn": torch.utils.data.default_collate}):
        for place, batch in enumerate(DataLoader(Own(), batch_size=10, num_workers=3, device="cuda", **options)):
            assert batch["x"].is_cuda and batch["y"].tolist() == list(range(10 * place, 10 * place + 10))
            assert list(batch["name"]) == [f"{index}" for index in batch["y"].tolist()]
            assert torch.equal(batch["x"][:, 0, 0].cpu(), batch["y"].cpu().float())


def batches_outlive_the_loader_and_are_never_overwritten():
    """Batches kept for the whole epoch, read on other streams, while the ring is used again and again."""
    data = pinfeed.TensorDataset(np.repeat(np.arange(400, dtype=np.int32), 65_536).reshape(400, 65_536))
    side = torch.cuda.Stream()
    kept, sums = [], []
    for epoch in range(3):
        with DataLoader(data, batch_size=8, num_workers=4, device="cuda") as loader:
            for (x,) in loader:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    x.record_stream(side)
                    sums.append(x.double().sum(1))
                kept.append(x if len(kept) < 60 else None)
    gc.collect()
    torch.cuda.synchronize()
    for place, got in enumerate(sums):
        first = 8 * (place % 50)
        assert torch.equal(got.cpu(), torch.arange(first, first + 8).double() * 65_536), place
    for place, x in enumerate(kept):
        if x is not None:
            first = 8 * (place % 50)
            assert torch.equal(x[:, -1].cpu(), torch.arange(first, first + 8, dtype=torch.int32))


def on_a_stream_of_the_programs():
    data = pinfeed.TensorDataset(np.arange(1_000_000, dtype=np.float32).reshape(100, 10_000))
    with torch.cuda.stream(torch.cuda.Stream()):
        total = sum(x.double().sum() for (x,) in DataLoader(data, batch_size=10, num_workers=2, device="cuda"))
        assert total.item() == 999_999 * 1_000_000 / 2


def states_and_ends():
    data = pinfeed.TensorDataset(np.arange(1000))
    loader = DataLoader(data, batch_size=10, shuffle=True, num_workers=4, device="cuda", depth=4)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    saved = loader.state_dict()
    assert saved["position"] == 70
    rest = [x.tolist() for (x,) in iterator]
    again = DataLoader(data, batch_size=10, shuffle=True, num_workers=0, device="cuda")
    again.load_state_dict(saved)
    assert [x.tolist() for (x,) in again] == rest
    for _ in range(200):  # left in the middle, with copies in flight
        next(iter(loader))
    loader.close()


def pin_memory_is_torchs():
    data = pinfeed.TensorDataset(np.arange(1000, dtype=np.float32).reshape(100, 10))
    for (x,) in DataLoader(data, batch_size=10, num_workers=2, pin_memory=True):
        assert x.is_pinned() and not x.is_cuda
    for (x,) in DataLoader(data, batch_size=10, num_workers=2):
        assert not x.is_pinned()  # no page-locked memory leaves as if it were pageable

    class Mixed:
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return {"numbers": torch.empty(4, 2).fill_(index), "more": {"number": index}, "text": f"{index}"}

    for batch in DataLoader(Mixed(), batch_size=4, shuffle=True, num_workers=2, pin_memory=True):
        assert batch["numbers"].is_pinned() and batch["more"]["number"].is_pinned() and batch["text"][0].isdecimal()

    class Own:
        """A batch that knows how it is page-locked."""

        def __init__(self, samples):
            self.numbers = torch.stack([sample[0] for sample in samples])

        def pin_memory(self):
            self.numbers = self.numbers.pin_memory()
            return self

    def packed(samples):
        return torch.nn.utils.rnn.pack_sequence([sample[0] for sample in samples])

    for num_workers in (0, 1):
        for batch in DataLoader(data, batch_size=10, num_workers=num_workers, pin_memory=True, collate_fn=Own):
            assert type(batch) is Own and batch.numbers.is_pinned()
        for batch in DataLoader(data, batch_size=10, num_workers=num_workers, pin_memory=True, collate_fn=packed):
            assert batch.is_pinned()


def leaks():
    data = pinfeed.TensorDataset(np.zeros((64, 1000), np.float32))
    loader = DataLoader(data, batch_size=16, num_workers=2, device="cuda")

    def taken():
        gc.collect()
        torch.cuda.synchronize()
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]

    for _ in range(200):
        next(iter(loader))
    before = taken()
    for _ in range(10_000):
        next(iter(loader))
    after = taken()
    assert after[1] == before[1] and after[2] == before[2], (before, after)
    assert after[0] - before[0] < 30_000 and before[3] - after[3] < 64 << 20, (before, after)
    return f"RSS {before[0]} to {after[0]} KiB, {after[1]} threads"


def the_doctor_measures_the_link():
    page = doctor.report(quick=True)
    text = "\n".join(page)
    assert "PCIe" in text and "page-lock" in text, text
    assert torch.cuda.is_available() and (torch.ones(3, device=DEVICE) + 1).sum() == 6  # the context is as it was
    return text


def what_a_hand_over_costs():
    """The host's time for a batch that is on the device already: 38.5 MB in bytes, and in floats. Beside it, at the same place in the same loop,
    torch's own part of the work: an empty tensor of that size, and a copy on the device into it.

    A thread that has slept finds its caches cold and its core slow, and then everything costs several times as much: so the loop is timed after a
    sleep, and after a step in which the thread is busy, as one is that launches kernels. The third figure is the thread's own time in a
    loop that does nothing else, waits not included."""

    def slept():
        time.sleep(0.05)  # the next batches arrive meanwhile

    def was_busy():
        end = time.perf_counter() + 0.05
        while time.perf_counter() < end:
            pass

    def median(times):
        return f"{1e6 * sorted(times)[len(times) // 2]:.0f}"

    said = []
    for name, dtype in (("bytes", np.uint8), ("float32", np.float32)):
        shape = (1024, 224, 224, 3) if dtype is np.uint8 else (256, 224, 224, 3)
        data = pinfeed.TensorDataset(np.zeros(shape, dtype), np.zeros(shape[0], np.int64))
        size = 256 if dtype is np.uint8 else 64
        loader = DataLoader(data, batch_size=size, num_workers=8, device="cuda", depth=3)
        there = next(iter(loader))[0]
        for step in (slept, was_busy):
            ours, torchs = [], []
            for _ in range(6):
                iterator = iter(loader)
                for _ in range(len(loader)):
                    step()
                    torch.cuda.synchronize()
                    begun = time.perf_counter()
                    next(iterator)
                    ours.append(time.perf_counter() - begun)
                    step()
                    torch.cuda.synchronize()
                    begun = time.perf_counter()
                    torch.empty_like(there).copy_(there, non_blocking=True)
                    torchs.append(time.perf_counter() - begun)
            said.append(f"{name}, {step.__name__}: {median(ours)} us (torch's part {median(torchs)} us)")
        begun, count = time.thread_time(), 0
        for _ in range(20):
            for _ in loader:
                count += 1
        said.append(f"{name}, in a loop: {1e6 * (time.thread_time() - begun) / count:.0f} us of the thread")
    return "; ".join(said)


def pictures_per_second(root):
    said = []
    for device, decode in ((None, "cpu"), ("cuda", "cpu"), ("cuda", "device"), ("cuda", "both")):
        data = ImageFolder(root, T.train(224), decode=decode)
        try:
            loader = DataLoader(data, batch_size=32, shuffle=True, num_workers="auto", device=device)
        except pinfeed.DeviceError as error:  # no nvJPEG on this machine
            said.append(f"{decode}: {error}")
            continue
        list(loader)
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < 3:
            for images, _ in loader:
                count += len(images)
        torch.cuda.synchronize()
        said.append(f"{'host' if device is None else f'{device}, decode={decode}'}: {count / (time.perf_counter() - begun):.0f} pictures/s")
    return "; ".join(said)


def main():
    print(f"pinfeed {pinfeed.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    with tempfile.TemporaryDirectory() as folder:
        drawn = pictures(f"{folder}/pictures")
        root = sys.argv[1] if len(sys.argv) > 1 else drawn
        for function in (the_same_values_as_on_the_host, all_types, own_data_sets_and_collate_functions, on_a_stream_of_the_programs):
            check(function)
        check(pictures_are_normalized_on_the_device, drawn)
        check(pictures_per_second, root)
        for function in (batches_outlive_the_loader_and_are_never_overwritten, states_and_ends, pin_memory_is_torchs, the_doctor_measures_the_link, what_a_hand_over_costs, leaks):
            check(function)
    if FAILED:
        sys.exit(f"failed: {', '.join(FAILED)}")
    print("all is well")


if __name__ == "__main__":
    main()
