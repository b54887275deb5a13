"""What a batch that arrives on the GPU costs the thread that takes it, by its size: `python python/benches/hand_over.py`.

It needs torch with CUDA. A line has the thread's own time and the time that passes, for each batch of one tensor, in a loop that does nothing
else, and in one whose step keeps the GPU busy for 10 ms, two of which are queued at most. The last lines are the driver's calls of which a hand-over is made, by torch: the copy of 38 MiB within the GPU, and to it, an event that is recorded or
waited for, and the first copy behind a millisecond in which the thread slept.
"""

import time

import numpy as np
import torch

import pinfeed

LARGE = 38 << 20  # 256 pictures of 224 x 224


def of_loader(output, size, workers):
    rows = max(1, (256 << 20) // size) if size > 65_536 else 2000
    data = pinfeed.TensorDataset(np.zeros((rows * 16, size // 16), np.uint8))
    with pinfeed.DataLoader(data, batch_size=16, num_workers=workers, device="cuda", depth=3, output=output) as loader:
        for _ in loader:
            pass
        own, begun, count = time.thread_time(), time.perf_counter(), 0
        while time.perf_counter() - begun < 0.7:
            for _ in loader:
                count += 1
        own, passed = time.thread_time() - own, time.perf_counter() - begun
    print(f"{output}, {size} bytes, {workers} workers: {1e6 * own / count:.1f} us of the thread, {1e6 * passed / count:.1f} us a batch", flush=True)


def behind_a_step(output, size, workers, steps=150):
    """What `next` takes where the GPU has work, and workers wait for room."""
    data = pinfeed.TensorDataset(np.zeros((512, size // 16), np.uint8))
    with pinfeed.DataLoader(data, batch_size=16, num_workers=workers, device="cuda", depth=3, output=output) as loader:
        queued, own, passed = [], [], []
        while len(own) < steps:
            batches = iter(loader)
            while True:
                cpu, wall = time.thread_time(), time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    break
                own.append(time.thread_time() - cpu)
                passed.append(time.perf_counter() - wall)
                torch.cuda._sleep(18_000_000)
                queued.append(torch.cuda.Event())
                queued[-1].record()
                if len(queued) > 2:
                    queued.pop(0).synchronize()
    own, passed = sorted(own), sorted(passed)
    middle, high = len(own) // 2, len(own) * 9 // 10
    print(
        f"{output}, {size} bytes, {workers} workers, a step of about 10 ms: {1e6 * own[middle]:.1f} us of the thread (the median; 9 of 10 below "
        f"{1e6 * own[high]:.1f}), {1e6 * passed[middle]:.1f} us pass",
        flush=True,
    )


def of_call(name, call, count=300):
    torch.cuda.synchronize()
    own, begun = time.thread_time(), time.perf_counter()
    for _ in range(count):
        call()
    own, passed = time.thread_time() - own, time.perf_counter() - begun
    torch.cuda.synchronize()
    print(f"{name}: {1e6 * own / count:.1f} us of the thread, {1e6 * passed / count:.1f} us", flush=True)


def main():
    for output in ("torch", "dlpack"):
        for size in (4096, 1 << 20, LARGE):
            for workers in (2, 8):
                of_loader(output, size, workers)
    for output in ("torch", "dlpack"):
        for size in (1 << 20, LARGE):
            behind_a_step(output, size, 4)
    here = torch.zeros(LARGE, dtype=torch.uint8).pin_memory()
    there, other = torch.zeros(LARGE, dtype=torch.uint8, device="cuda"), torch.empty(LARGE, dtype=torch.uint8, device="cuda")
    event, stream = torch.cuda.Event(), torch.cuda.Stream()

    def slept():
        time.sleep(0.001)
        other.copy_(there, non_blocking=True)

    of_call("a copy within the GPU", lambda: other.copy_(there, non_blocking=True))
    of_call("a copy to the GPU", lambda: other.copy_(here, non_blocking=True), 100)
    of_call("an event is recorded", event.record)
    of_call("an event is waited for", lambda: stream.wait_event(event))
    of_call("a copy behind 1 ms of sleep", slept, 100)


if __name__ == "__main__":
    main()
