"""Epochs that are opened and dropped: what they leave.

    python python/benches/leaks.py [--epochs 10000] [--device cuda] [--only tables,own] [--check]

It prints, as they go, resident memory, threads, page-locked bytes, memory of the GPU that batches hold, and open files. Epochs end in turn: not
asked for a batch, after the first, in the middle, at their end; each hundredth with its loader, in all of its ways. With ``--check`` it fails unless
the numbers are flat from the first tenth on.
"""

import argparse
import gc
import os
import sys
import tempfile

import numpy as np

import pinfeed


# KiB of memory (allocators keep some), threads (one may be ending), bytes, files.
SLACK = (16 << 10, 1, 0, 16 << 20, 0)


class Own:
    """Samples of the program's own, of which one in a hundred fails."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 57:
            raise KeyError(index)
        return {"samples": np.full(500, index, np.float32), "name": f"{index}"}


def pictures(folder):
    from PIL import Image

    for number in range(40):
        os.makedirs(f"{folder}/{number % 2}", exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"{folder}/{number % 2}/{number}.jpg")
    return pinfeed.ImageFolder(folder, pinfeed.transforms.train(32))


def taken(loader):
    """What the process has: KiB of memory, threads, bytes, files."""
    gc.collect()
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    memory = loader.memory()
    files = len(os.listdir("/proc/self/fd"))
    return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), memory["pinned_bytes"], memory["device_held_bytes"] + memory["adrift_bytes"], files


def taking(iterator, count):
    for _ in range(count):
        try:
            next(iterator)
        except KeyError:
            pass  # the sample that fails
        except StopIteration:
            return


def drops(name, make, epochs):
    """Opens and drops epochs. Returns what the process had after each tenth of them."""
    loader, seen = make(), []
    print(f"{name}\n{'epochs':>8} {'RSS KiB':>9} {'threads':>8} {'page-locked':>12} {'on the GPU':>11} {'files':>6}")
    for epoch in range(epochs + 1):
        if epoch % (epochs // 10) == 0:
            seen.append(taken(loader))
            rss, threads, pinned, held, files = seen[-1]
            print(f"{epoch:8} {rss:9} {threads:8} {pinned:12} {held:11} {files:6}", flush=True)
        iterator = iter(loader)
        taking(iterator, (0, 1, len(loader) // 2, len(loader) + 1)[epoch % 4])
        if epoch % 7 == 0:
            loader.load_state_dict(loader.state_dict())
        if epoch % 100 == 99:
            match epoch // 100 % 3:
                case 0:
                    loader.close()
                case 1:
                    loader = None  # the iterator goes after it
                case 2:
                    iterator = None
            loader = make()
        del iterator
    loader.close()
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10_000, help="of each kind of data set; a multiple of 10")
    parser.add_argument("--device", default=None)
    parser.add_argument("--only", default="tables,own,pictures")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    table = pinfeed.TensorDataset(np.zeros((100, 500), np.float32), np.arange(100))
    output = {"output": "numpy"} if options.device is None else {"device": options.device, "output": "dlpack"}
    kinds = options.only.split(",")
    leaky = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            data = {"tables": lambda: table, "own": Own, "pictures": lambda: pictures(folder)}[kind]()
            for num_workers in (0, 2):
                name = f"{kind}, num_workers={num_workers}"
                seen = drops(
                    name, lambda: pinfeed.DataLoader(data, batch_size=10, shuffle=True, num_workers=num_workers, **output), options.epochs
                )
                first, last = seen[1], seen[-1]
                grown = [after > before + slack for before, after, slack in zip(first, last, SLACK, strict=True)]
                if any(grown):
                    leaky.append(f"{name}: {first} became {last}")
    if options.check and leaky:
        sys.exit("\n".join(leaky))
    print("done")


if __name__ == "__main__":
    main()
