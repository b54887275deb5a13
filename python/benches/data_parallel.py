"""Loading, transfer and processing of data-parallel training: a ResNet in PyTorch on one or more GPUs, with and without page-locked memory.

    torchrun --nproc-per-node 2 python/benches/data_parallel.py FOLDER [--models resnet18,resnet50] [--batch-sizes 64,256] [--workers 4,16] [--seconds 1.5]

FOLDER has a folder of JPEG files for each class (benches/peers/photos.py draws one). It needs torch, torchvision and pinfeed. One process for each GPU,
under DistributedDataParallel, bf16 by autocast, channels last, SGD with momentum. Batch sizes and workers are those of one GPU. Pictures are decoded to bytes and cropped
by the workers, copied as bytes, and normalized on the GPU, whoever loads them. Without torchrun it is one process, and `--device cpu` shows that it works without a GPU.

Each line is measured twice. *Each part waited for*, as one measures by hand: a batch, then its copy, then the step, and the device synchronized behind each:

    loading      ms that the loop waited for a batch
    transfer     ms that its copy took
    processing   ms that the step took

*As it runs*, the host at most two steps ahead of the GPU:

    next, to     ms a batch that the host spent in these two calls
    copy         ms that a copy took on the GPU, by events (pinfeed's `device=`: by its own statistics)
    images/s     of all GPUs
    idle         the share of the loop's time that the step alone does not need (measured before there is a loader): the GPU waited, or did something else

The ways: `torch` is `torch.utils.data.DataLoader` with torchvision's decoder to bytes; `pinfeed` is this loader, which decodes on the CPU, in the same lines;
both `pageable` (`pin_memory=False`, `.to(device)`) and `pinned` (`pin_memory=True`, `.to(device, non_blocking=True)`). `pinfeed device` is `device=`, in which nothing is left of the copy's lines, and
`pinfeed both` the same with `decode="both"`. `torch pageable+nb`, which is not among the
defaults, is the mixture that people try: `non_blocking=True` without page-locked memory.
"""

import argparse
import collections
import os
import time

import torch
import torch.distributed as dist
import torchvision
from torch.utils.data import DataLoader, RandomSampler
from torchvision import datasets
from torchvision.transforms import v2

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WAYS = "torch pageable,torch pinned,pinfeed pageable,pinfeed pinned,pinfeed device,pinfeed both"
COLUMNS = "GPUs,model,batch,workers,way,loading,transfer,processing,next,to,copy,images/s,idle".split(",")


def decode(path):
    return torchvision.io.decode_jpeg(torchvision.io.read_file(path), mode=torchvision.io.ImageReadMode.RGB)


def by_torch(asked, batch_size, workers, pinned):
    """Endless: one long order, so that no epoch ends within a line. Its generator differs from rank to rank, as a DistributedSampler's share would."""
    data = datasets.ImageFolder(asked.folder, v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]), loader=decode)
    order = RandomSampler(data, num_samples=1_000_000_000 // len(data) * len(data), generator=torch.Generator().manual_seed(asked.rank))
    return iter(DataLoader(data, batch_size, sampler=order, num_workers=workers, pin_memory=pinned)), None


def by_pinfeed(asked, batch_size, workers, pinned, device=None, decode="cpu"):
    import pinfeed
    from pinfeed import transforms as T

    pictures = pinfeed.ImageFolder(asked.folder, T.Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]), decode=decode)
    loader = pinfeed.DataLoader(
        pictures, batch_size, shuffle=True, seed=17, drop_last=True, num_workers=workers, pin_memory=pinned, device=device, world="env" if asked.world > 1 else None
    )

    def endless():
        while True:
            yield from loader

    return endless(), loader


class Line:
    """One way of loading for one model, batch size and number of workers."""

    def __init__(self, asked, way, batch_size, workers):
        self.asked, self.device = asked, asked.device
        self.loader, self.both = None, way is not None and way.endswith("both")
        self.moves = way is not None and way.split()[1] in ("pageable", "pageable+nb", "pinned")
        self.non_blocking = way is not None and way.endswith(("pinned", "nb"))
        if way is None:
            self.batches = None  # the step alone
        elif way.startswith("torch"):
            self.batches, self.loader = by_torch(asked, batch_size, workers, way.endswith("pinned"))
        elif self.moves:
            self.batches, self.loader = by_pinfeed(asked, batch_size, workers, way.endswith("pinned"))
        else:
            self.batches, self.loader = by_pinfeed(asked, batch_size, workers, False, asked.device, "both" if self.both else "cpu")
        # (The mean and deviation of bytes, as a tensor that broadcasts over pictures in either layout.)
        self.mean = 255 * torch.tensor(MEAN, device=self.device).view(1, 3, 1, 1)
        self.std = 255 * torch.tensor(STD, device=self.device).view(1, 3, 1, 1)

    def close(self):
        """Ends the workers. (Those of torch's end with their iterator.)"""
        self.batches = None
        if self.loader is not None:
            self.loader.close()

    def is_settled(self):
        """It is known which pictures the GPU decodes."""
        return not self.both or not self.asked.is_gpu or self.loader.total_stats().device_share is not None

    def move(self, batch):
        """The program's own line. Where the loader has copied the batch, there is nothing to do."""
        if not self.moves:
            return batch
        return tuple(one.to(self.device, non_blocking=self.non_blocking) for one in batch)

    def pictures(self, batch):
        images, labels = batch
        if images.shape[-1] == 3:
            images = images.permute(0, 3, 1, 2)
        return (images.to(torch.float32, memory_format=torch.channels_last) - self.mean) / self.std, labels


class Training:
    """The model, and its step."""

    def __init__(self, asked, name):
        self.device = asked.device
        torch.manual_seed(17)
        model = getattr(torchvision.models, name)().to(asked.device, memory_format=torch.channels_last).train()
        if asked.world > 1:
            model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[asked.device.index] if asked.is_gpu else None)
        self.model, self.sgd = model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(self, images, labels):
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.sgd.zero_grad(set_to_none=True)
        loss.backward()
        self.sgd.step()


class Clock:
    """Events on the GPU, or the host's clock where there is none."""

    def __init__(self, asked):
        self.asked = asked

    def wait(self):
        if self.asked.is_gpu:
            torch.cuda.synchronize(self.asked.device)

    def mark(self):
        if not self.asked.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms(self, begun, ended):
        return begun.elapsed_time(ended) if self.asked.is_gpu else 1e3 * (ended - begun)


def everywhere(asked, value, how):
    """The value of all ranks together."""
    if asked.world == 1:
        return value
    tensor = torch.tensor(float(value), dtype=torch.float64, device=asked.device)
    dist.all_reduce(tensor, how)
    return tensor.item()


def waited_for(asked, line, training, steps):
    """Means in ms of loading, transfer and processing, each waited for."""
    clock, sums = Clock(asked), [0.0, 0.0, 0.0]
    clock.wait()
    for _ in range(steps):
        at = [time.perf_counter()]
        batch = next(line.batches)
        clock.wait()
        at.append(time.perf_counter())
        batch = line.move(batch)
        clock.wait()
        at.append(time.perf_counter())
        training.step(*line.pictures(batch))
        clock.wait()
        at.append(time.perf_counter())
        sums = [total + 1e3 * (end - begin) for total, begin, end in zip(sums, at, at[1:])]
    return [total / steps for total in sums]


def as_it_runs(asked, line, training, steps, held=None):
    """Means in ms a batch: of the loop, of `next`, of the copy's line, and of the copy on the GPU. With a batch to hold, the step alone."""
    clock, pending, copies = Clock(asked), collections.deque(), []
    in_next = in_move = 0.0
    clock.wait()
    begun = time.perf_counter()
    for _ in range(steps):
        batch = held
        if held is None:
            asked_at = time.perf_counter()
            batch = next(line.batches)
            moved_at = time.perf_counter()
            before = clock.mark()
            batch = line.move(batch)
            after = clock.mark()
            in_next, in_move = in_next + moved_at - asked_at, in_move + time.perf_counter() - moved_at
            copies.append((before, after))
        training.step(*line.pictures(batch))
        if asked.is_gpu:
            pending.append(torch.cuda.Event())
            pending[-1].record()
            if len(pending) > 2:
                pending.popleft().synchronize()
    clock.wait()
    took = time.perf_counter() - begun
    copy = sum(clock.ms(*both) for both in copies) / max(len(copies), 1)
    return [1e3 * took / steps, 1e3 * in_next / steps, 1e3 * in_move / steps, copy]


def agreed(asked, value, how=dist.ReduceOp.MIN):
    """A number of steps, the same on all ranks: each step of theirs waits for the others'."""
    return max(2, int(everywhere(asked, value, how)))


def step_alone(asked, training, batch_size):
    """ms, where no loader takes cores."""
    noise = torch.randint(256, (batch_size, 3, SIZE, SIZE), dtype=torch.uint8, device=asked.device), torch.randint(1000, (batch_size,), device=asked.device)
    line = Line(asked, None, batch_size, 0)
    as_it_runs(asked, line, training, 3, noise)
    warm = as_it_runs(asked, line, training, 3, noise)[0]
    return as_it_runs(asked, line, training, agreed(asked, 1e3 * asked.seconds / warm), noise)[0]


def measured(asked, training, alone, way, batch_size, workers):
    line = Line(asked, way, batch_size, workers)
    try:
        # The warm-up. Each worker of torch's makes batches of its own, so that they come in bursts. And this loader may be finding out which pictures the GPU
        # decodes: that may take the second in which its decoder opens, and 64 batches.
        as_it_runs(asked, line, training, workers + 4)
        begun = time.perf_counter()
        while everywhere(asked, line.is_settled() or time.perf_counter() - begun > 6, dist.ReduceOp.MIN) < 1:
            as_it_runs(asked, line, training, 8)
        warm = as_it_runs(asked, line, training, 4)[0]
        # (At least two bursts, and of what is waited for one.)
        burst = workers if way.startswith("torch") else 2
        loop, in_next, in_move, copy = as_it_runs(asked, line, training, max(2 * burst, agreed(asked, 1e3 * asked.seconds / warm)))
        parts = waited_for(asked, line, training, max(burst, agreed(asked, 250 * asked.seconds / loop)))
        if not line.moves:
            copy = 1e3 * line.loader.total_stats().transfer
    finally:
        line.close()
    mean = [everywhere(asked, value, dist.ReduceOp.SUM) / asked.world for value in (*parts, in_next, in_move, copy, loop, alone)]
    loop, alone = mean[6:]
    return [*mean[:6], 1e3 * asked.world * batch_size / loop, max(0.0, 1 - alone / loop)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--models", default="resnet18,resnet50")
    parser.add_argument("--batch-sizes", default="64,256", help="of one GPU")
    parser.add_argument("--workers", default="4,16", help="of one GPU")
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--seconds", type=float, default=1.5, help="of the loop as it runs, for each line")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    asked.rank, asked.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    asked.is_gpu = asked.device == "cuda"
    asked.device = torch.device("cuda", local) if asked.is_gpu else torch.device("cpu")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if asked.is_gpu:
        torch.cuda.set_device(asked.device)
        torch.backends.cudnn.benchmark = True
    if asked.world > 1:
        dist.init_process_group("nccl" if asked.is_gpu else "gloo", **({"device_id": asked.device} if asked.is_gpu else {}))
    say = print if asked.rank == 0 else lambda *_, **__: None
    say("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS), flush=True)
    for model in asked.models.split(","):
        training = Training(asked, model)
        for batch_size in map(int, asked.batch_sizes.split(",")):
            alone = step_alone(asked, training, batch_size)
            for workers in map(int, asked.workers.split(",")):
                for way in asked.ways.split(","):
                    parts = measured(asked, training, alone, way, batch_size, workers)
                    shown = [f"{value:.2f}" for value in parts[:6]] + [f"{parts[6]:.0f}", f"{100 * parts[7]:.1f} %"]
                    say("| " + " | ".join([str(asked.world), model, str(batch_size), str(workers), way, *shown]) + " |", flush=True)
    if asked.world > 1:
        dist.destroy_process_group()
    os._exit(0)  # (torch's loaders of endless orders wait at the exit for their workers)


if __name__ == "__main__":
    main()
