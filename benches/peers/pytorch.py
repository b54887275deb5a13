#!/usr/bin/env python3
"""How fast does PyTorch feed a device? The workloads of pinfeed's `feed` bench, with its options and its keys.

    python3 pytorch.py tensor --device cuda:0 --workers 0,8,16 --seconds 5 --json

Needs torch, torchvision (with Pillow) for `jpeg`, and timm for its variant `timm`. PyTorch is used as its documentation advises:
worker processes that persist and have one thread each, page-locked batches, non-blocking copies. Where users know a faster way,
that is a variant of its own; without `--variant`, all are measured.

Epochs follow each other without a pause, as with timm's `MultiEpochsDataLoader`: the workers load the next epoch's batches
while the last ones are taken. With `--epochs apart` each epoch asks the loader for a new iterator, as most programs do.

A result counts the CPU seconds and the memory of worker processes too: memory that processes share counts once.
"""

import argparse
import gc
import hashlib
import itertools
import json
import math
import os
import random
import resource
import statistics
import sys
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset, default_collate

try:
    import torchvision
    from PIL import Image
    from torchvision.transforms import v2
except ImportError:  # only `jpeg` needs them
    torchvision = None

PEER = "pytorch " + ".".join(torch.__version__.split("+")[0].split(".")[:2])
DTYPES = {"u8": torch.uint8, "f32": torch.float32}
SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
CORES = len(os.sched_getaffinity(0))


# Data sets: at module level, so that worker processes find them.


class Rows(Dataset):
    """Rows of a tensor, one by one: what `TensorDataset` does, without the tuple."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Batches(Rows):
    """Whole batches at once: the loader asks `__getitems__` where there is one."""

    def __getitems__(self, indices):
        return self.rows.index_select(0, torch.tensor(indices))


class Floats(Rows):
    """A list of Python floats, which become a tensor when they are collated (as `f64`)."""


class Table(TensorDataset):
    """Rows of several tensors, whole batches at once."""

    def __getitems__(self, indices):
        indices = torch.tensor(indices)
        return tuple(part.index_select(0, indices) for part in self.tensors)


class Busy(Dataset):
    """Rows that cost CPU time: so many bytes are hashed for each. All processes see when that number changes."""

    def __init__(self, rows, length):
        self.rows, self.length = rows, length
        self.burnt_bytes = torch.zeros(1, dtype=torch.float64).share_memory_()
        self.fuel = memoryview(bytes(1 << 16))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        left, digest = int(self.burnt_bytes), hashlib.sha256()
        while left > 0:
            digest.update(self.fuel[:left])
            left -= len(self.fuel)
        return self.rows[index % len(self.rows)]


class Images(Dataset):
    """A class folder of JPEGs, as (image, label): decoded by Pillow or by torchvision, and transformed."""

    def __init__(self, folder, variant):
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self.files = [
            (str(file), label)
            for label, name in enumerate(classes)
            for file in sorted(Path(folder, name).rglob("*"))
            if file.suffix.lower() in (".jpg", ".jpeg")
        ]
        if not self.files:
            sys.exit(f"{folder}: no JPEGs in folders of classes")
        self.by_pillow = variant in ("pil", "timm")
        if variant == "timm":
            self.transform = timm_transform()
            return
        steps = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
        if self.by_pillow:
            steps.append(v2.PILToTensor())
        if variant != "torchvision_u8":
            steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self.transform = v2.Compose(steps)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        if self.by_pillow:
            with Image.open(path) as image:
                return self.transform(image.convert("RGB")), label
        encoded = torchvision.io.read_file(path)
        image = torchvision.io.decode_image(encoded, torchvision.io.ImageReadMode.RGB)
        return self.transform(image), label


class Files(Images):
    """The same files, not decoded: a batch is their bytes one after the other, how many each has, and the labels."""

    def __getitems__(self, indices):
        paths, labels = zip(*(self.files[index] for index in indices))
        encoded = [torchvision.io.read_file(path) for path in paths]
        return torch.cat(encoded), torch.tensor([len(part) for part in encoded]), torch.tensor(labels)


def timm_transform():
    from timm.data import create_transform

    return create_transform(
        SIDE, is_training=True, color_jitter=None, interpolation="bilinear", mean=MEAN, std=STD, use_prefetcher=True
    )


def as_it_is(batch):
    return batch


# Loaders around a `DataLoader`, or in its place.


class Shuffles(Sampler):
    """Permutations without end, each of as many as fill whole batches."""

    def __init__(self, count, batch_size, seed):
        self.count, self.whole, self.seed = count, count - count % batch_size, seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.count, generator=generator)[: self.whole].tolist()


class Joined:
    """Epochs of a loader whose sampler never ends: its workers do not pause between two."""

    def __init__(self, loader, batches_per_epoch):
        self.loader, self.batches_per_epoch = loader, batches_per_epoch
        self.batches = None

    def __len__(self):
        return self.batches_per_epoch

    def __iter__(self):
        if self.batches is None:
            self.batches = iter(self.loader)
        return itertools.islice(self.batches, len(self))


class Wrapped:
    """A loader around another, with as many batches."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __len__(self):
        return len(self.loader)


class SentAhead(Wrapped):
    """Sends each batch on a stream of its own, while the program works on the one before: NVIDIA's `data_prefetcher`."""

    def __iter__(self):
        if self.device.type != "cuda":
            yield from self.loader
            return
        stream, ahead = torch.cuda.Stream(self.device), None
        for batch in itertools.chain(self.loader, [None]):
            coming = None
            if batch is not None:
                with torch.cuda.stream(stream):
                    coming = batch.to(self.device, non_blocking=True), stream.record_event()
            if ahead is not None:
                now, arrived = ahead
                torch.cuda.current_stream().wait_event(arrived)
                now.record_stream(torch.cuda.current_stream())
                yield now
            ahead = coming


class DecodedThere(Wrapped):
    """`torchvision.io.decode_jpeg` of a whole batch on the GPU, a batch ahead in a thread, then crops and resizes there."""

    def decode(self, batches):
        batch = next(batches, None)
        if batch is None:
            return None
        encoded, sizes, labels = batch
        files = list(encoded.split(sizes.tolist()))
        mode = torchvision.io.ImageReadMode.RGB
        return torchvision.io.decode_jpeg(files, mode=mode, device=self.device), labels

    def __iter__(self):
        batches = iter(self.loader)
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(self.decode, batches)
            while (decoded := ahead.result()) is not None:
                ahead = thread.submit(self.decode, batches)
                pictures, labels = decoded
                cropped = torch.cat([resized_crop(picture) for picture in pictures])
                flips = (torch.rand(len(cropped), 1, 1, 1) < 0.5).to(self.device, non_blocking=True)
                yield torch.where(flips, cropped.flip(3), cropped), labels


def resized_crop(picture):
    """As `RandomResizedCrop`, which draws with tensors and takes longer for that than the GPU for the rest."""
    height, width = picture.shape[1:]
    for _ in range(10):
        area = height * width * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(*map(math.log, RATIO)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        w = h = min(width, height)
    top, left = random.randint(0, height - h), random.randint(0, width - w)
    crop = picture[None, :, top : top + h, left : left + w].float()
    return torch.nn.functional.interpolate(crop, (SIDE, SIDE), mode="bilinear", antialias=True)


class Gathered:
    """No `DataLoader`: all threads gather the rows of a batch into page-locked memory, of which there are a few in turn."""

    def __init__(self, rows, batch_size, device):
        self.rows, self.batch_size = rows, batch_size
        pin = device.type == "cuda"
        self.buffers = [torch.empty((batch_size, *rows.shape[1:]), dtype=rows.dtype, pin_memory=pin) for _ in range(3)]
        self.sent = [torch.cuda.Event() for _ in self.buffers] if pin else None

    def __len__(self):
        return len(self.rows) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.rows))
        for number in range(len(self)):
            at = number % len(self.buffers)
            if self.sent:
                self.sent[at].synchronize()
            chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield torch.index_select(self.rows, 0, chosen, out=self.buffers[at])
            if self.sent:  # the consumer's copy is under way
                self.sent[at].record()


class Registered:
    """No `DataLoader` either: the data set is page-locked where it lies, and each row is sent from there."""

    def __init__(self, rows, batch_size, device):
        self.rows, self.batch_size, self.device = rows, batch_size, device
        register(rows)
        self.views = rows.unbind()

    def __len__(self):
        return len(self.rows) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.rows)).tolist()
        for begin in range(0, len(self) * self.batch_size, self.batch_size):
            chosen = [self.views[index] for index in order[begin : begin + self.batch_size]]
            batch = torch.empty((self.batch_size, *self.rows.shape[1:]), dtype=self.rows.dtype, device=self.device)
            torch._foreach_copy_(list(batch.unbind()), chosen, non_blocking=True)
            yield batch

    def close(self):
        unregister(self.rows)


class Sliced:
    """No `DataLoader` either: the whole data set is put into an epoch's order at once, and batches are slices of that."""

    def __init__(self, parts, batch_size, pin=False):
        self.parts, self.batch_size, self.pin = parts, batch_size, pin

    def __len__(self):
        return len(self.parts[0]) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.parts[0]), device=self.parts[0].device)
        shuffled = [part.index_select(0, order) for part in self.parts]
        if self.pin:
            shuffled = [part.pin_memory() for part in shuffled]
        slices = zip(*(part.split(self.batch_size) for part in shuffled))
        return itertools.islice(slices if len(shuffled) > 1 else (batch for (batch,) in slices), len(self))


class Indexed(Sliced):
    """The same, but each batch is gathered when it is asked for."""

    def __iter__(self):
        order = torch.randperm(len(self.parts[0]), device=self.parts[0].device)
        for chosen in itertools.islice(order.split(self.batch_size), len(self)):
            yield tuple(part.index_select(0, chosen) for part in self.parts)


def register(tensor):
    status = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
    if int(status) != 0:
        sys.exit(f"cudaHostRegister of {tensor.nbytes} bytes: error {int(status)}")


def unregister(tensor):
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


# Measuring.


def processes():
    """This process and all below it."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := process_stat(entry)):
            children.setdefault(int(stat[1]), []).append(int(entry))
    tree = [os.getpid()]
    for process in tree:
        tree += children.get(process, [])
    return tree


def process_stat(process):
    """The fields of /proc/PID/stat from the third on: state, parent, ..."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return None


def cpu_seconds():
    """User and system time of this process and all below it, those that have ended among them."""
    ticks = os.sysconf("SC_CLK_TCK")
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in own)
    for process in processes()[1:]:
        if stat := process_stat(process):
            seconds += sum(map(int, stat[11:15])) / ticks
    return seconds


def memory_mb():
    """Memory of this process and all below it; what they share (the data set, batches on their way) counts once."""
    tree = processes()
    if len(tree) == 1:
        return proc_mb("/proc/self/status", "VmHWM:")
    sizes = [proc_mb(f"/proc/{process}/smaps_rollup", "Pss:") for process in tree]
    return None if sizes[0] is None else sum(size or 0.0 for size in sizes)


def proc_mb(path, key):
    try:
        lines = Path(path).read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(key))
    except (OSError, StopIteration):
        return None


def pinned_mb(device):
    if device.type != "cuda":
        return None
    return torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) / 1e6


def forget_pinned(device):
    """Gives page-locked memory back that PyTorch keeps from what ran before, and counts afresh."""
    reset_peak()
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_host_memory_stats()


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device, work):
    """Seconds that some work takes, on the device too."""
    synchronize(device)
    begun = perf_counter()
    work()
    synchronize(device)
    return perf_counter() - begun


def copy_rate(device, source, target, seconds=0.3):
    """GB/s of plain copies, back to back."""
    once = max(timed(device, lambda: target.copy_(source, non_blocking=True)) for _ in range(2))
    count = max(3, int(seconds / 3 / once))

    def copies():
        for _ in range(count):
            target.copy_(source, non_blocking=True)

    best = min(timed(device, copies) for _ in range(3))
    return count * source.nbytes / best / 1e9


def limit_gb_s(device, size):
    """What bare copies of this size reach, from page-locked memory. Without a device, PyTorch copies nothing."""
    if device.type != "cuda":
        return None
    source = torch.zeros(size, dtype=torch.uint8).pin_memory()
    return copy_rate(device, source, torch.empty(size, dtype=torch.uint8, device=device))


def milliseconds(times, share):
    if not times:
        return None
    times = sorted(times)
    return 1e3 * times[round((len(times) - 1) * share)]


def reset_peak():
    """Makes Linux count this process's peak of memory from here on."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # then it counts from the start of the process
        pass


class Window:
    """A stretch of time, and what it cost."""

    def __init__(self):
        self.cpu = cpu_seconds()
        self.begun = perf_counter()

    def end(self):
        window = perf_counter() - self.begun
        cpu = cpu_seconds() - self.cpu
        return {"window_s": window, "cpu_s": cpu, "cores": cpu / window}


class Run:
    """Epochs back to back for so many seconds, after one to warm up.

    Epochs are measured whole, as the pause at an epoch's begin is a part of them; but one that takes longer than twice
    the seconds is cut short.
    """

    def __init__(self, loader, take, device, seconds):
        self.loader, self.take, self.device, self.seconds = loader, take, device, seconds
        self.firsts = []
        self.peak = None
        forget_pinned(device)
        self.clear()
        self.epoch(perf_counter() + seconds, self.see_memory)
        synchronize(device)
        self.clear()

        window = Window()
        while perf_counter() - window.begun < seconds:
            self.epoch(window.begun + 2 * seconds)
        synchronize(device)
        self.cost = window.end()
        self.see_memory()
        del self.loader, self.take  # its workers can end

    def clear(self):
        self.samples = self.batches = self.bytes = 0
        self.waits = []

    def epoch(self, end, halfway=None):
        half = min(len(self.loader) // 2, 1000)
        asked = perf_counter()
        batches = iter(self.loader)
        for number in itertools.count():
            batch = next(batches, None)
            given = perf_counter()
            if batch is None:
                break
            self.waits.append(given - asked)
            if number == 0:
                self.firsts.append(given - asked)
            samples, size = self.take(batch)
            self.samples += samples
            self.bytes += size
            self.batches += 1
            if halfway and number == half:
                halfway()
            del batch
            if given > end:
                break
            asked = perf_counter()

    def see_memory(self):
        """In the middle of an epoch, when batches are on their way; not in the window, as it takes a while."""
        seen = memory_mb()
        self.peak = max(filter(None, (self.peak, seen)), default=None)

    def record(self):
        window = self.cost["window_s"]
        return self.cost | {
            "samples_s": self.samples / window,
            "batches_s": self.batches / window,
            "gb_s": self.bytes / window / 1e9,
            "first_batch_ms": 1e3 * self.firsts[0],
            "wait_p50_ms": milliseconds(self.waits, 0.5),
            "wait_p99_ms": milliseconds(self.waits, 0.99),
            "peak_rss_mb": self.peak,
            "pinned_mb": pinned_mb(self.device),
            "first_batch_warm_ms": milliseconds(self.firsts[1:], 0.5),
        }


KEYS = (
    "workload peer variant device workers batch_size dtype samples_s batches_s gb_s limit_gb_s share first_batch_ms "
    "wait_p50_ms wait_p99_ms cpu_s window_s peak_rss_mb pinned_mb"
).split()


def report(args, record):
    record = dict.fromkeys(KEYS) | {"workload": args.workload, "peer": PEER} | record
    if record["workers"] and args.workload not in ("limits", "roundtrip"):
        record["prefetch"] = args.prefetch
    if record["gb_s"] is not None and record["limit_gb_s"]:
        record["share"] = record["gb_s"] / record["limit_gb_s"]
    for key, value in record.items():
        if isinstance(value, float):
            record[key] = float(f"{value:.5g}")
        elif isinstance(value, list):
            record[key] = [float(f"{item:.5g}") for item in value]
    if args.json:
        print(json.dumps(record, separators=(",", ":")), flush=True)
    else:
        print(" ".join(f"{key}={value}" for key, value in record.items() if value is not None), flush=True)


# Workloads.


def make_loader(
    args, device, dataset, workers, batch_size, collate=default_collate, pin=True, joined=False, per_epoch=None, around=None
):
    """With `joined`, epochs do not pause; they have so many batches, if not as many as the data set fills. `around` makes another
    loader of the loader."""
    pin = pin and device.type == "cuda"
    more = {}
    if workers:  # each sets the number of its threads to one by itself
        more = {"persistent_workers": True, "prefetch_factor": args.prefetch, "multiprocessing_context": "fork"}
        if args.any_order:
            more["in_order"] = False
    if joined:
        count = per_epoch * batch_size if per_epoch else len(dataset)
        more["sampler"] = Shuffles(count, batch_size, args.seed)
    else:
        more["shuffle"] = True
    batches = len(dataset) // batch_size
    if not batches:
        sys.exit("the data set does not fill one batch: raise --samples")
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        drop_last=True,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        generator=torch.Generator().manual_seed(args.seed),
        **more,
    )
    loader = around(loader, device) if around else loader
    return Joined(loader, per_epoch or batches) if joined else loader


def random_rows(count, dtype, seed):
    """Images of random numbers: some are drawn, and repeated, since what they are does not matter."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randint(0, 256, (min(count, 64), 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    rows = torch.empty((count, 3, SIDE, SIDE), dtype=dtype)
    for begin in range(0, count, len(some)):
        part = rows[begin : begin + len(some)]
        part.copy_(some[: len(part)])
    return rows


def rows_loader(args, device, variant, rows, workers, batch_size):
    own = {
        "gathered": lambda: Gathered(rows, batch_size, device),
        "registered": lambda: Registered(rows, batch_size, device),
        "sliced": lambda: Sliced([rows], batch_size),
    }
    if variant in own:
        return own[variant]()
    dataset, collate = {
        "workers": (Rows, default_collate),
        "no_workers": (Rows, default_collate),
        "batched": (Batches, as_it_is),
        "floats": (Floats, default_collate),
    }[variant]
    return make_loader(args, device, dataset(rows), workers, batch_size, collate, joined=args.epochs == "joined")


def wanted(args, *variants):
    return [variant for variant in variants if args.variant is None or variant in args.variant]


def tensor(args, device):
    for name in args.dtype or ["u8"]:
        rows = random_rows(args.samples or 20_000, DTYPES[name], args.seed)

        def take(batch):
            batch.to(device, non_blocking=True)
            return len(batch), batch.nbytes

        for batch_size, workers in itertools.product(args.batch_size or [256], args.workers or [0, CORES]):
            size = batch_size * rows[0].nbytes
            # Those without a DataLoader have no workers: 0 stands for all threads.
            alone = ["no_workers", "batched", "gathered"] + (["registered"] if device.type == "cuda" else [])
            for variant in wanted(args, *(["workers", "batched"] if workers else alone)):
                limits = [limit_gb_s(device, size)]
                loader = rows_loader(args, device, variant, rows, workers, batch_size)
                run = Run(loader, take, device, args.seconds or 5)
                limits.append(limit_gb_s(device, size))
                limit = None if None in limits else statistics.mean(limits)
                config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
                report(args, config | {"dtype": name, "limit_gb_s": limit} | run.record())
                if variant == "registered":
                    loader.close()
                del loader
        del rows


def tiny(args, _):
    host = torch.device("cpu")
    scalars = torch.arange(args.samples or 1_000_000, dtype=torch.float32)

    def take(batch):
        return len(batch), batch.nbytes

    for batch_size, workers in itertools.product(args.batch_size or [32], args.workers or [0, 4]):
        for variant in wanted(args, *(["workers", "batched"] if workers else ["no_workers", "batched", "sliced"]), "floats"):
            rows = scalars.tolist() if variant == "floats" else scalars
            loader = rows_loader(args, host, variant, rows, workers, batch_size)
            run = Run(loader, take, host, args.seconds or 5)
            config = {"variant": variant, "device": "cpu", "workers": workers, "batch_size": batch_size}
            record = {"dtype": "f64" if variant == "floats" else "f32"} | run.record()
            report(args, config | record | {"gb_s": None, "ns_per_batch": 1e9 / record["batches_s"]})


def table(args, device):
    """A million rows of 20 `f32` and a target, to the device: as a data set, put into order at once, and kept on the device."""
    rows = args.samples or 1_000_000
    parts = (torch.rand(rows, 20), torch.rand(rows))

    def take(batch):
        sent = [part.to(device, non_blocking=True) for part in batch]
        return len(sent[0]), sum(part.nbytes for part in sent)

    for batch_size, workers in itertools.product(args.batch_size or [32, 1024], args.workers or [0, 2, 8]):
        alone = ["no_workers", "batched", "sliced", "resident", "resident_sliced"]
        for variant in wanted(args, *(["workers", "batched"] if workers else alone)):
            there = [part.to(device) for part in parts] if variant.startswith("resident") else None
            own = {
                "sliced": lambda: Sliced(parts, batch_size, pin=device.type == "cuda"),
                "resident": lambda: Indexed(there, batch_size),
                "resident_sliced": lambda: Sliced(there, batch_size),
            }
            if variant in own:
                loader = own[variant]()
            else:
                dataset, collate = (Table, as_it_is) if variant == "batched" else (TensorDataset, default_collate)
                joined = args.epochs == "joined"
                loader = make_loader(args, device, dataset(*parts), workers, batch_size, collate, joined=joined)
            run = Run(loader, take, device, args.seconds or 5)
            config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
            record = {"dtype": "f32"} | run.record() | ({"gb_s": None} if there else {})
            report(args, config | record | {"ns_per_batch": 1e9 / record["batches_s"]})
            del loader, there


def roundtrip(args, device):
    """One large batch to the device and back, each way waited for, and a result for each."""
    shape = (args.frames, 3, 3840, 2160)
    source = torch.empty(shape).fill_(0.5)
    size = source.nbytes
    there = torch.empty(shape, device=device)
    limits = {"h2d": None, "d2h": None}
    if device.type == "cuda":
        pinned = torch.empty(shape, pin_memory=True)
        limits = {"h2d": copy_rate(device, pinned, there), "d2h": copy_rate(device, there, pinned)}
        del pinned

    def pinned_like():
        return torch.empty(shape, pin_memory=device.type == "cuda")

    on_device = ["registered", "pieces"] if device.type == "cuda" else []
    for variant in wanted(args, "pageable", "pin_each", "reused", "staged", *on_device):
        forget_pinned(device)
        if variant == "pageable":  # into memory that has been touched: fresh pages would cost more than the copy
            target = torch.zeros(shape)
            to = lambda: there.copy_(source, non_blocking=True)
            back = lambda: target.copy_(there, non_blocking=True)
        elif variant == "pin_each":  # PyTorch keeps freed page-locked memory: it locks in the first step only
            pin = (lambda: source.pin_memory()) if device.type == "cuda" else (lambda: source.clone())
            to = lambda: there.copy_(pin(), non_blocking=True)
            back = lambda: pinned_like().copy_(there, non_blocking=True)
        elif variant == "reused":
            target = pinned_like().copy_(source)
            to = lambda: there.copy_(target, non_blocking=True)
            back = lambda: target.copy_(there, non_blocking=True)
        elif variant == "registered":  # the program's own memory, page-locked where it lies, once
            target = torch.zeros(shape)
            register(source)
            register(target)
            to = lambda: there.copy_(source, non_blocking=True)
            back = lambda: target.copy_(there, non_blocking=True)
        elif variant == "pieces":
            target = torch.zeros(shape)
            pieces = Pieces(device)
            to = lambda: pieces.send(source, there)
            back = lambda: pieces.fetch(there, target)
        else:
            stage, target = pinned_like(), torch.zeros(shape)

            def to():
                there.copy_(stage.copy_(source), non_blocking=True)

            def back():
                stage.copy_(there, non_blocking=True)
                synchronize(device)
                target.copy_(stage)

        for _ in range(2):
            timed(device, to)
            timed(device, back)
        window = Window()
        times = {"h2d": [], "d2h": []}
        while perf_counter() - window.begun < (args.seconds or 5) or len(times["h2d"]) < 3:
            times["h2d"].append(timed(device, to))
            times["d2h"].append(timed(device, back))
        cost = window.end() | {"peak_rss_mb": memory_mb(), "pinned_mb": pinned_mb(device)}
        config = {"variant": variant, "device": str(device), "batch_size": args.frames, "dtype": "f32"}
        for direction, seconds in times.items():
            rate = {"gb_s": size / statistics.mean(seconds) / 1e9, "limit_gb_s": limits[direction]}
            more = {"direction": direction, "size_bytes": size, "steps": len(seconds)}
            report(args, config | rate | cost | more | {"ms_per_step": 1e3 * statistics.mean(seconds)})
        if variant == "registered":
            unregister(source)
            unregister(target)
        target = stage = pieces = None


class Pieces:
    """Staged in pieces: all threads copy one into page-locked memory, or out of it, while others travel."""

    def __init__(self, device, count=4, size=4 << 20):
        self.size = size  # elements: 16 MiB
        self.stages = [torch.empty(size, pin_memory=True) for _ in range(count)]
        self.done = [torch.cuda.Event() for _ in range(count)]

    def of(self, tensor):
        return tensor.view(-1).split(self.size)

    def send(self, source, there):
        for number, (piece, target) in enumerate(zip(self.of(source), self.of(there))):
            at = number % len(self.stages)
            self.done[at].synchronize()
            target.copy_(self.stages[at][: len(piece)].copy_(piece), non_blocking=True)
            self.done[at].record()

    def fetch(self, there, target):
        under_way = deque()

        def arrive():
            at, piece = under_way.popleft()
            self.done[at].synchronize()
            piece.copy_(self.stages[at][: len(piece)])

        for number, (piece, source) in enumerate(zip(self.of(target), self.of(there))):
            if len(under_way) == len(self.stages):
                arrive()
            at = number % len(self.stages)
            self.stages[at][: len(piece)].copy_(source, non_blocking=True)
            self.done[at].record()
            under_way.append((at, piece))
        while under_way:
            arrive()


class Step:
    """Fixed work on the device, beside the host: a kernel that waits; without a device, a sleep."""

    def __init__(self, device, milliseconds):
        self.device, self.seconds = device, milliseconds / 1e3
        if device.type == "cuda":
            self.cycles = 1_000_000_000
            self.cycles = int(self.cycles * 0.1 / timed(device, self.run))  # which brings the clock up, too
            for _ in range(3):
                self.cycles = int(self.cycles * self.seconds / timed(device, self.run))

    def run(self):
        if self.device.type == "cuda":
            torch.cuda._sleep(self.cycles)
        else:
            time.sleep(self.seconds)


def steps(device, step, batches, warm, count):
    """Runs steps: (seconds for each of so many, after some to warm up; what the window cost; the waits for a batch).

    As in a training loop, the host is at most two steps ahead. The clock runs between two equal moments of the loop: no
    stream is drained in between.
    """
    under_way, waits = deque(), []
    for number in range(warm + count):
        if number == warm:
            window, waits = Window(), []
        asked = perf_counter()
        batch = next(batches)
        waits.append(perf_counter() - asked)
        on_device = batch.to(device, non_blocking=True)
        on_device.flatten()[0].add(1)  # it needs the batch
        step.run()
        if device.type == "cuda":
            under_way.append(torch.cuda.Event())
            under_way[-1].record()
            if len(under_way) > 2:
                under_way.popleft().synchronize()
    cost = window.end()
    synchronize(device)
    return cost["window_s"] / count, cost, waits


def load_time(args, batches, workers):
    """Seconds to load a batch, with nothing beside, once those are gone that were loaded before."""
    for _ in range(workers * args.prefetch + 2):
        next(batches)
    begun, count = perf_counter(), 0
    while count < max(10, 2 * workers) or perf_counter() - begun < 0.4:
        next(batches)
        count += 1
    return (perf_counter() - begun) / count


def calibrate(args, loader, goal):
    """Makes samples cost so much that loading a batch takes so long; returns how long it takes."""
    work, batches = loader.dataset.burnt_bytes, iter(loader)
    idle = load_time(args, batches, loader.num_workers)
    if idle >= goal:
        print("note: loading takes as long without any work in the samples: raise --step-ms", file=sys.stderr)
        return idle
    work[0] = 100_000
    for _ in range(4):
        seconds = load_time(args, batches, loader.num_workers)
        factor = (goal - idle) / max(1e-9, seconds - idle)
        work *= min(8.0, max(0.125, factor))  # not further: on a busy machine times are wild
    return load_time(args, batches, loader.num_workers)


def overlap(args, device):
    """What the loop loses to loading: steps with a batch that lies on the device, and the same with loaded ones.

    `loss` copies each batch on the stream of the step, in front of it; `ahead` on a stream of its own, beside the step before.
    Samples cost so much CPU that loading, with half of the cores, takes 0.8 of a step.
    """
    step = Step(device, args.step_ms or 20)
    warm, count = 10, max(20, int((args.seconds or 2) / step.seconds))
    rows = random_rows(2_000, torch.uint8, args.seed)
    configs = itertools.product(args.batch_size or [256], args.workers or [max(1, CORES // 2)])
    for (batch_size, workers), variant in itertools.product(configs, wanted(args, "loss", "ahead")):
        # More batches than it takes: no epoch's end lies in a window.
        dataset = Busy(rows, (2_000 + count) * batch_size)
        loader = make_loader(args, device, dataset, workers, batch_size)
        load_share = calibrate(args, loader, 0.8 * step.seconds) / step.seconds
        del loader

        def loaded():
            nonlocal peak
            loader = make_loader(args, device, dataset, workers, batch_size)
            batches = iter(SentAhead(loader, device) if variant == "ahead" else loader)
            firsts.append(timed(device, lambda: next(batches)))
            half = steps(device, step, batches, warm, count)
            peak = memory_mb() if peak is None else peak
            return half  # the workers end

        def baseline():
            resident = rows[:batch_size].to(device)
            return steps(device, step, itertools.repeat(resident), warm, count)

        firsts, pairs, peak = [], [], None
        forget_pinned(device)
        for pair in range(args.pairs):  # in turn, so that a drift of the machine's favours neither
            if pair % 2 == 0:
                alone = baseline()
                pairs.append((alone, loaded()))
            else:
                beside = loaded()
                pairs.append((baseline(), beside))
        losses = [1 - alone[0] / beside[0] for alone, beside in pairs]
        seconds = statistics.median(beside[0] for _, beside in pairs)
        waits = [wait for _, beside in pairs for wait in beside[2]]
        costs = [beside[1] for _, beside in pairs]
        cpu, window = (sum(cost[key] for cost in costs) for key in ("cpu_s", "window_s"))
        record = {
            "variant": variant,
            "device": str(device),
            "workers": workers,
            "batch_size": batch_size,
            "dtype": "u8",
            "samples_s": batch_size / seconds,
            "batches_s": 1 / seconds,
            "gb_s": batch_size * rows[0].nbytes / seconds / 1e9,
            "first_batch_ms": milliseconds(firsts, 0.5),
            "wait_p50_ms": milliseconds(waits, 0.5),
            "wait_p99_ms": milliseconds(waits, 0.99),
            "cpu_s": cpu,
            "window_s": window,
            "peak_rss_mb": peak,
            "pinned_mb": pinned_mb(device),
            "cores": cpu / window,
            "loss_median": statistics.median(losses),
            "loss_min": min(losses),
            "loss_max": max(losses),
            "losses": losses,
            "step_ms": 1e3 * step.seconds,
            "baseline_step_ms": 1e3 * statistics.median(alone[0] for alone, _ in pairs),
            "loaded_step_ms": 1e3 * seconds,
            "load_share": load_share,
            "wait_p99_share": milliseconds(waits, 0.99) / (1e3 * step.seconds),
            "steps": count,
        }
        report(args, record)


def images(args, variant):
    if torchvision is None:
        sys.exit("decoding needs torchvision and Pillow")
    if args.data is None:
        sys.exit("--data: which class folder of JPEGs?")
    dataset = (Files if variant == "torchvision_gpu" else Images)(args.data, variant)
    if args.samples:
        dataset.files = dataset.files[: args.samples]
    return dataset


def jpeg(args, device):
    """Each variant ends in normalised `f32` images on the device; all but `pil` and `torchvision` normalise them there."""
    mean = torch.tensor(MEAN, device=device).view(3, 1, 1) * 255
    scale = 1 / (torch.tensor(STD, device=device).view(3, 1, 1) * 255)

    def take(batch):
        pictures, labels = (part.to(device, non_blocking=True) for part in batch)
        if not normalised:
            pictures = pictures.float().sub_(mean).mul_(scale)
        return len(pictures), (batch[0].nbytes + batch[1].nbytes) if sent else 0

    configs = itertools.product(args.batch_size or [256], args.workers or [CORES])
    variants = wanted(args, "pil", "torchvision", "torchvision_u8", "torchvision_gpu", "timm")
    for (batch_size, workers), variant in itertools.product(configs, variants):
        collate, around = default_collate, None
        if variant == "torchvision_gpu":
            collate, around = as_it_is, DecodedThere
        elif variant == "timm":
            try:
                from timm.data.loader import PrefetchLoader, fast_collate
            except ImportError:
                print("note: no timm, so its variant is left out", file=sys.stderr)
                continue
            collate = fast_collate
            if device.type == "cuda":  # it sends batches on a stream of its own, and normalises them
                around = lambda loader, device: PrefetchLoader(loader, mean=MEAN, std=STD, device=device)
        normalised = variant in ("pil", "torchvision") or (variant == "timm" and around is not None)
        sent = around is None
        how = {"joined": args.epochs == "joined", "around": around}
        loader = make_loader(args, device, images(args, variant), workers, batch_size, collate, **how)
        run = Run(loader, take, device, args.seconds or 5)
        config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
        record = {"dtype": "f32"} | run.record()
        report(args, config | record | ({} if sent else {"gb_s": None}))
        del loader


def startup(args, device):
    """From the begin of an epoch to its first batch, and to its arrival on the device: first and second epoch."""
    for variant in wanted(args, "tensor", *(["jpeg"] if args.data else [])):
        if variant == "tensor":
            rows = random_rows(args.samples or 20_000, torch.uint8, args.seed)
        for batch_size, workers in itertools.product(args.batch_size or [256], args.workers or [CORES]):
            forget_pinned(device)
            window = Window()
            dataset = Rows(rows) if variant == "tensor" else images(args, "torchvision_u8")
            open_data = perf_counter() - window.begun
            begun = perf_counter()
            loader = make_loader(args, device, dataset, workers, batch_size)
            build = perf_counter() - begun
            in_hand, arrived = [], []
            for epoch in (1, 2):
                begun = perf_counter()
                batches = iter(loader)
                first = next(batches)
                in_hand.append(1e3 * (perf_counter() - begun))
                pictures_of(first).to(device, non_blocking=True)
                synchronize(device)
                arrived.append(1e3 * (perf_counter() - begun))
                if epoch == 1:  # the second begins when it is over
                    deque(batches, maxlen=0)
            record = {
                "variant": variant,
                "device": str(device),
                "workers": workers,
                "batch_size": batch_size,
                "dtype": "u8",
                "first_batch_ms": in_hand[0],
                "peak_rss_mb": memory_mb(),
                "pinned_mb": pinned_mb(device),
                "samples": len(dataset),
                "device_open_ms": 1e3 * args.device_open_s,
                "data_open_ms": 1e3 * open_data,
                "build_ms": 1e3 * build,
                "first_on_device_ms": arrived[0],
                "second_epoch_first_batch_ms": in_hand[1],
                "second_epoch_first_on_device_ms": arrived[1],
            }
            cost = window.end()
            del first, batches, loader
            report(args, record | cost | boundaries(args, device, dataset, workers, batch_size))


def boundaries(args, device, dataset, workers, batch_size):
    """Waits for the first batch of an epoch behind the last of another, and for the others, where epochs are joined and the
    program takes a quarter longer with a batch than loading does."""
    short, count = min(6, len(dataset) // batch_size), 8
    loader = make_loader(args, device, dataset, workers, batch_size, joined=True, per_epoch=short)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    seconds = 1.25 * load_time(args, batches, workers)
    for _ in range(2 * short):
        next(batches)
        time.sleep(seconds)
    across, within = [], []
    for number in range((count + 1) * short):
        asked = perf_counter()
        pictures_of(next(batches)).to(device, non_blocking=True)
        (within if number % short else across).append(perf_counter() - asked)
        time.sleep(seconds)
    waits = {"boundary": across, "within": within}
    found = {f"{name}_ms": milliseconds(times, 0.5) for name, times in waits.items()}
    return found | {f"{name}_max_ms": milliseconds(times, 1.0) for name, times in waits.items()}


def pictures_of(batch):
    return batch[0] if isinstance(batch, list) else batch


def breakdown(args, device):
    """Loading, transfer and processing of a batch in milliseconds, each waited for: with pinning, and without."""
    step = Step(device, args.step_ms or 2)
    dataset = images(args, "torchvision_u8") if args.data else Rows(random_rows(args.samples or 20_000, torch.uint8, args.seed))
    configs = itertools.product(args.batch_size or [256], args.workers or [CORES])
    for (batch_size, workers), pinned in itertools.product(configs, (True, False)):
        loader = make_loader(args, device, dataset, workers, batch_size, pin=pinned)
        forget_pinned(device)
        for _ in loader:
            pass
        loading, transfer, processing = [], [], []
        samples = sent = 0
        window = Window()
        while perf_counter() - window.begun < (args.seconds or 5):
            asked = perf_counter()
            for batch in loader:
                loading.append(perf_counter() - asked)
                pictures = pictures_of(batch)
                transfer.append(timed(device, lambda: pictures.to(device, non_blocking=pinned)))
                processing.append(timed(device, step.run))
                samples += len(pictures)
                sent += pictures.nbytes
                asked = perf_counter()
        cost = window.end()
        record = {
            "device": str(device),
            "workers": workers,
            "batch_size": batch_size,
            "dtype": "u8",
            "samples_s": samples / cost["window_s"],
            "batches_s": len(loading) / cost["window_s"],
            "gb_s": sent / cost["window_s"] / 1e9,
            "wait_p50_ms": milliseconds(loading, 0.5),
            "wait_p99_ms": milliseconds(loading, 0.99),
            "peak_rss_mb": memory_mb(),
            "pinned_mb": pinned_mb(device),
            "pinned": pinned,
            "loading_ms": 1e3 * statistics.mean(loading),
            "transfer_ms": 1e3 * statistics.mean(transfer),
            "processing_ms": 1e3 * statistics.mean(processing),
            "transfer_gb_s": sent / sum(transfer) / 1e9,
            "data": "jpeg" if args.data else "tensor",
        }
        report(args, record | cost)
        del batch, pictures, loader


def limits(args, device):
    """Copies by size, copies on the host by threads, and what page-locking costs."""
    cuda, name = device.type == "cuda", str(device)
    sizes = [size for size in (64 << 10 << 2 * step for step in range(8)) if size <= args.max_mb << 20]
    for memory, size in itertools.product(("pinned", "pageable"), sizes if cuda else []):
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=memory == "pinned")
        there = torch.zeros(size, dtype=torch.uint8, device=device)
        for direction, rate in (("h2d", copy_rate(device, host, there)), ("d2h", copy_rate(device, there, host))):
            record = {"variant": memory, "device": name, "gb_s": rate, "direction": direction, "size_bytes": size}
            report(args, record)
    size = 64 << 20
    source, target = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    threads = torch.get_num_threads()
    for workers in args.workers or sorted({1, max(1, CORES // 2), CORES}):
        torch.set_num_threads(workers)
        rate = copy_rate(torch.device("cpu"), source, target)
        report(args, {"variant": "memcpy", "device": name, "workers": workers, "gb_s": rate, "size_bytes": size})
    torch.set_num_threads(threads)
    if cuda:
        size = 3 << 29  # a size that was not asked for before: PyTorch keeps page-locked memory
        lock = 1e3 * timed(device, lambda: torch.empty(size, dtype=torch.uint8, pin_memory=True))
        record = {"variant": "pin_memory", "device": name, "size_bytes": size, "lock_ms": lock}
        report(args, record | {"lock_ms_per_gb": lock * 1e9 / size})


WORKLOADS = {
    work.__name__: work for work in (limits, tensor, tiny, table, roundtrip, overlap, jpeg, startup, breakdown)
}


def main():
    def listed(kind):
        return lambda text: [kind(item.strip()) for item in text.split(",")]

    def named(name):
        return torch.device("cuda:0" if name == "cuda" else name)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--device", type=listed(named), default=[torch.device("cpu")], help="cpu, cuda:N")
    parser.add_argument("--workers", type=listed(int), help="worker processes; 0: none")
    parser.add_argument("--batch-size", type=listed(int))
    parser.add_argument("--dtype", type=listed(str), help="u8, f32")
    parser.add_argument("--seconds", type=float, help="how long each result is measured (5; overlap: 2)")
    parser.add_argument("--data", help="a class folder of JPEGs")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--samples", type=int, help="samples in the data set")
    parser.add_argument("--variant", type=listed(str), help="only these variants")
    parser.add_argument("--prefetch", type=int, default=2, help="batches that each worker loads ahead (2)")
    parser.add_argument("--epochs", choices=["joined", "apart"], default="joined", help="tensor, tiny, table, jpeg (joined)")
    parser.add_argument("--any-order", action="store_true", help="batches as workers have them (in_order=False)")
    parser.add_argument("--frames", type=int, default=10, help="roundtrip: frames in the batch (10)")
    parser.add_argument("--pairs", type=int, default=7, help="overlap: with and without loading, so often (7)")
    parser.add_argument("--step-ms", type=float, help="how long the device works on a batch (20; breakdown: 2)")
    parser.add_argument("--max-mb", type=int, default=1024, help="limits: the largest copy in MiB (1024)")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores: as asked for
    for device in args.device:
        begun = perf_counter()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
        synchronize(device)
        args.device_open_s = perf_counter() - begun
        WORKLOADS[args.workload](args, device)


if __name__ == "__main__":
    main()
