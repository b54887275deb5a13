"""Batches on the CPU: pinfeed's loader beside PyTorch's own, with the same files and the same work.

    python python/benches/beside_torch.py FOLDER [--workers 4] [--batches 40] [--batch-size 256]

It prints, for each loader, pictures per second, seconds to the first batch, and the host's time for a batch that is ready.
"""

import argparse
import statistics
import time

import torch
import torchvision
from torchvision import transforms as V

import pinfeed
from pinfeed import transforms as T


def measured(name, loader, batches):
    begun = time.perf_counter()
    iterator = iter(loader)
    images, _ = next(iterator)
    first = time.perf_counter() - begun
    begun, count = time.perf_counter(), 0
    for _ in range(batches):
        batch = next(iterator, None)
        if batch is None:
            iterator = iter(loader)
            continue
        count += len(batch[0])
    rate = count / (time.perf_counter() - begun)
    print(f"{name:28} {rate:9.0f} pictures/s   first batch {1e3 * first:7.0f} ms   {images.dtype} {tuple(images.shape)}", flush=True)


def hand_over():
    """The host's time for a batch of 38.5 MB: for one that is ready, behind a step in which the thread is busy, as one is that launches kernels; and the
    thread's own time for each batch in a loop that does nothing else, waits not included."""
    data = pinfeed.TensorDataset(torch.zeros(1024, 224, 224, 3, dtype=torch.uint8), torch.arange(1024))
    times, own, count = [], 0, 0
    with pinfeed.DataLoader(data, batch_size=256, num_workers=2, prefetch=4) as loader:
        for _ in range(5):
            begun = time.thread_time()
            count += sum(1 for _ in loader)
            own += time.thread_time() - begun
            iterator = iter(loader)
            time.sleep(0.4)  # (until four are ready)
            for _ in range(3):
                end = time.perf_counter() + 0.02
                while time.perf_counter() < end:
                    pass
                begun = time.perf_counter()
                next(iterator)
                times.append(time.perf_counter() - begun)
    print(f"{'a batch that is ready':28} {1e6 * statistics.median(times):9.0f} us of the host, median")
    print(f"{'a batch, in a loop':28} {1e6 * own / count:9.0f} us of the thread")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=256)
    asked = parser.parse_args()
    options = {"batch_size": asked.batch_size, "shuffle": True, "num_workers": asked.workers, "drop_last": True}
    normalize = [V.ToTensor(), V.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
    theirs = torchvision.datasets.ImageFolder(asked.folder, V.Compose([V.RandomResizedCrop(224), V.RandomHorizontalFlip(), *normalize]))
    measured("torch", torch.utils.data.DataLoader(theirs, **options), asked.batches)
    for name, transform in (("pinfeed", T.train(224)), ("pinfeed, bytes", T.train(224, dtype="uint8"))):
        with pinfeed.DataLoader(pinfeed.ImageFolder(asked.folder, transform), **options) as loader:
            measured(name, loader, asked.batches)
    own = torchvision.datasets.ImageFolder(asked.folder, theirs.transform)
    with pinfeed.DataLoader(own, **options) as loader:
        measured("pinfeed, torchvision's set", loader, asked.batches)
    hand_over()


if __name__ == "__main__":
    main()
