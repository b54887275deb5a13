#!/usr/bin/env python3
"""How fast does PyTorch feed a device? The workloads of pinfeed's `feed` bench, with its options and its keys.

    python3 pytorch.py tensor --device cuda:0 --workers 0,8,16 --seconds 5 --json

Needs torch, and torchvision (with Pillow) for `jpeg`. PyTorch is used as its documentation advises: worker processes
that persist, page-locked batches, non-blocking copies. Where users know a faster way, that is a variant of its own.

A result counts the CPU seconds and the memory of worker processes too: memory that processes share counts once.
"""

import argparse
import hashlib
import itertools
import json
import os
import resource
import statistics
import sys
import time
import warnings
from collections import deque
from pathlib import Path
from time import perf_counter

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

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


class Busy(Dataset):
    """Rows that cost CPU time: so many bytes are hashed for each."""

    def __init__(self, rows, length, burnt_bytes):
        self.rows, self.length = rows, length
        self.fuel = memoryview(bytes(1 << 16))
        self.burnt_bytes = burnt_bytes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        burn(self.fuel, self.burnt_bytes)
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
        self.by_pillow = variant == "pil"
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


def as_it_is(batch):
    return batch


def burn(fuel, burnt_bytes):
    digest = hashlib.sha256()
    while burnt_bytes > 0:
        digest.update(fuel[:burnt_bytes])
        burnt_bytes -= len(fuel)
    return digest.digest()


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
        self.loader, self.take, self.device = loader, take, device
        self.samples = self.batches = self.bytes = 0
        self.waits, self.firsts = [], []

        self.peak = None
        reset_peak()
        self.epoch(perf_counter() + seconds, self.see_memory)
        synchronize(device)
        self.samples = self.batches = self.bytes = 0
        self.waits, self.firsts = [], []

        window = Window()
        while perf_counter() - window.begun < seconds:
            self.epoch(window.begun + 2 * seconds)
        synchronize(device)
        self.cost = window.end()
        self.see_memory()

    def epoch(self, end, halfway=None):
        half = min(len(self.loader) // 2, 1000)
        asked = perf_counter()
        batches = iter(self.loader)
        for number in itertools.count():
            batch = next(batches, None)
            given = perf_counter()
            if batch is None:
                break
            (self.waits if number else self.firsts).append(given - asked)
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
            "first_batch_ms": milliseconds(self.firsts, 0.5),
            "wait_p50_ms": milliseconds(self.firsts + self.waits, 0.5),
            "wait_p99_ms": milliseconds(self.firsts + self.waits, 0.99),
            "peak_rss_mb": self.peak,
            "pinned_mb": pinned_mb(self.device),
        }


KEYS = (
    "workload peer variant device workers batch_size dtype samples_s batches_s gb_s limit_gb_s share first_batch_ms "
    "wait_p50_ms wait_p99_ms cpu_s window_s peak_rss_mb pinned_mb"
).split()


def report(args, record):
    record = dict.fromkeys(KEYS) | {"workload": args.workload, "peer": PEER} | record
    if record["gb_s"] is not None and record["limit_gb_s"]:
        record["share"] = record["gb_s"] / record["limit_gb_s"]
    for key, value in record.items():
        if isinstance(value, float):
            record[key] = float(f"{value:.5g}")
    if args.json:
        print(json.dumps(record, separators=(",", ":")), flush=True)
    else:
        print(" ".join(f"{key}={value}" for key, value in record.items() if value is not None), flush=True)


# Workloads.


def make_loader(args, device, dataset, workers, batch_size, collate=default_collate, pin=True, shuffle=True):
    pin = pin and device.type == "cuda"
    more = {}
    if workers:
        more = {"persistent_workers": True, "prefetch_factor": args.prefetch, "multiprocessing_context": "fork"}
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        generator=torch.Generator().manual_seed(args.seed),
        **more,
    )


def random_rows(count, dtype, seed):
    """Images of random numbers: some are drawn, and repeated, since what they are does not matter."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randint(0, 256, (min(count, 64), 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    rows = torch.empty((count, 3, SIDE, SIDE), dtype=dtype)
    for begin in range(0, count, len(some)):
        part = rows[begin : begin + len(some)]
        part.copy_(some[: len(part)])
    return rows


def rows_loader(args, device, variant, rows, workers, batch_size, pin=True):
    dataset, collate = {
        "workers": (Rows, default_collate),
        "no_workers": (Rows, default_collate),
        "batched": (Batches, as_it_is),
        "floats": (Floats, default_collate),
    }[variant]
    return make_loader(args, device, dataset(rows), workers, batch_size, collate, pin)


def wanted(args, *variants):
    return [variant for variant in variants if args.variant is None or variant in args.variant]


def tensor(args, device):
    for name in args.dtype or ["u8"]:
        rows = random_rows(args.samples or 20_000, DTYPES[name], args.seed)

        def take(batch):
            batch.to(device, non_blocking=True)
            return len(batch), batch.nbytes

        for batch_size, workers in itertools.product(args.batch_size or [256], args.workers or [0, CORES]):
            limit = limit_gb_s(device, batch_size * rows[0].nbytes)
            for variant in wanted(args, *(["workers"] if workers else ["no_workers", "batched"])):
                loader = rows_loader(args, device, variant, rows, workers, batch_size)
                run = Run(loader, take, device, args.seconds or 5)
                config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
                report(args, config | {"dtype": name, "limit_gb_s": limit} | run.record())
                del run, loader
        del rows


def tiny(args, _):
    host = torch.device("cpu")
    scalars = torch.arange(args.samples or 1_000_000, dtype=torch.float32)
    take = lambda batch: (len(batch), batch.nbytes)
    for batch_size, workers in itertools.product(args.batch_size or [32], args.workers or [0, 4]):
        for variant in wanted(args, *(["workers"] if workers else ["no_workers", "batched"]), "floats"):
            rows = scalars.tolist() if variant == "floats" else scalars
            loader = rows_loader(args, host, variant, rows, workers, batch_size)
            run = Run(loader, take, host, args.seconds or 5)
            config = {"variant": variant, "device": "cpu", "workers": workers, "batch_size": batch_size}
            report(args, config | {"dtype": "f64" if variant == "floats" else "f32"} | run.record())


def roundtrip(args, device):
    """`gb_s` is to the device, `back_gb_s` from it. Each step ends before the next begins."""
    shape = (args.frames, 3, 3840, 2160)
    source = torch.empty(shape).fill_(0.5)
    size = source.nbytes
    there = torch.empty(shape, device=device)
    limit = back_limit = None
    if device.type == "cuda":
        pinned = torch.empty(shape, pin_memory=True)
        limit, back_limit = copy_rate(device, pinned, there), copy_rate(device, there, pinned)
        del pinned

    def pinned_like():
        return torch.empty(shape, pin_memory=device.type == "cuda")

    for variant in wanted(args, "pageable", "pin_each", "reused", "staged"):
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
        else:
            stage, target = pinned_like(), torch.zeros(shape)

            def to():
                there.copy_(stage.copy_(source), non_blocking=True)

            def back():
                stage.copy_(there, non_blocking=True)
                synchronize(device)
                target.copy_(stage)

        reset_peak()
        for _ in range(2):
            timed(device, to)
            timed(device, back)
        window = Window()
        tos, backs = [], []
        while perf_counter() - window.begun < (args.seconds or 5) or len(tos) < 3:
            tos.append(timed(device, to))
            backs.append(timed(device, back))
        cost = window.end()
        config = {"variant": variant, "device": str(device), "batch_size": args.frames, "dtype": "f32"}
        rates = {"gb_s": size * len(tos) / sum(tos) / 1e9, "limit_gb_s": limit}
        rates |= {"back_gb_s": size * len(backs) / sum(backs) / 1e9, "back_limit_gb_s": back_limit}
        report(args, config | rates | cost | {"peak_rss_mb": memory_mb(), "pinned_mb": pinned_mb(device)})
        target = stage = None


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


def steps(device, step, batches, count, waits):
    """Seconds for so many steps. As in a training loop, the host is at most two steps ahead."""
    under_way = deque()
    synchronize(device)
    begun = perf_counter()
    for _ in range(count):
        asked = perf_counter()
        batch = next(batches)
        waits.append(perf_counter() - asked)
        on_device = batch.to(device, non_blocking=True)
        on_device.flatten()[0].add(1)  # it needs the batch
        step.run()
        if device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            under_way.append(event)
            if len(under_way) > 2:
                under_way.popleft().synchronize()
    synchronize(device)
    return perf_counter() - begun


def burn_rate():
    """Bytes a second that one core hashes."""
    fuel = memoryview(bytes(1 << 16))
    size, rates = 1 << 24, []
    for _ in range(8):
        begun = perf_counter()
        burn(fuel, size)
        rates.append(size / (perf_counter() - begun))
    return max(rates)


def overlap(args, device):
    """What the loop loses to loading: steps with a batch that lies on the device, and the same with loaded ones."""
    step = Step(device, args.step_ms or 20)
    half = max(1, CORES // 2)
    rate = burn_rate()
    warm, count = 10, max(5, int((args.seconds or 2) / step.seconds))
    rows = random_rows(1_024, torch.uint8, args.seed)
    for batch_size, workers in itertools.product(args.batch_size or [256], args.workers or [half]):
        # With half of the cores, loading a batch takes 0.8 of a step.
        seconds = 0.8 * step.seconds * half / batch_size
        # More batches than steps: workers have something to load until the last.
        length = (warm + count + max(1, workers) * args.prefetch + 1) * batch_size
        dataset = Busy(rows, length, int(seconds * rate))
        resident = rows[:batch_size].to(device)
        waits, losses, firsts = [], [], []
        baselines, loadeds = [], []
        cpu = window = 0.0
        peak = None
        for _ in range(args.pairs):
            steps(device, step, itertools.repeat(resident), 3, [])
            baselines.append(steps(device, step, itertools.repeat(resident), count, []) / count)
            loader = make_loader(args, device, dataset, workers, batch_size)
            asked = perf_counter()
            batches = iter(loader)
            first = next(batches)
            firsts.append(perf_counter() - asked)
            steps(device, step, itertools.chain([first], batches), warm, [])
            cost = Window()
            loadeds.append(steps(device, step, batches, count, waits) / count)
            cost = cost.end()
            cpu, window = cpu + cost["cpu_s"], window + cost["window_s"]
            losses.append(1 - baselines[-1] / loadeds[-1])
            peak = memory_mb() if peak is None else peak
            del first, batches, loader  # its workers end
        loaded = statistics.median(loadeds)
        config = {"device": str(device), "workers": workers, "batch_size": batch_size, "dtype": "u8"}
        record = {
            "samples_s": batch_size / loaded,
            "batches_s": 1 / loaded,
            "gb_s": batch_size * rows[0].nbytes / loaded / 1e9,
            "first_batch_ms": milliseconds(firsts, 0.5),
            "wait_p50_ms": milliseconds(waits, 0.5),
            "wait_p99_ms": milliseconds(waits, 0.99),
            "cpu_s": cpu,
            "window_s": window,
            "cores": cpu / window,
            "peak_rss_mb": peak,
            "pinned_mb": pinned_mb(device),
            "step_ms": 1e3 * statistics.median(baselines),
            "loss": statistics.median(losses),
            "loss_min": min(losses),
            "loss_max": max(losses),
            "pairs": args.pairs,
        }
        report(args, config | record)


def images(args, variant):
    if torchvision is None:
        sys.exit("decoding needs torchvision and Pillow")
    if args.data is None:
        sys.exit("--data: which class folder of JPEGs?")
    dataset = Images(args.data, variant)
    if args.samples:
        dataset.files = dataset.files[: args.samples]
    return dataset


def jpeg(args, device):
    """Each variant ends in normalised `f32` images on the device; `torchvision_u8` normalises them there."""
    mean = torch.tensor(MEAN, device=device).view(3, 1, 1) * 255
    scale = 1 / (torch.tensor(STD, device=device).view(3, 1, 1) * 255)

    def take(batch):
        pictures, labels = (part.to(device, non_blocking=True) for part in batch)
        if pictures.dtype == torch.uint8:
            pictures = pictures.float().sub_(mean).mul_(scale)
        return len(pictures), batch[0].nbytes + batch[1].nbytes

    configs = itertools.product(args.batch_size or [256], args.workers or [CORES])
    for (batch_size, workers), variant in itertools.product(
        configs, wanted(args, "pil", "torchvision", "torchvision_u8")
    ):
        loader = make_loader(args, device, images(args, variant), workers, batch_size)
        run = Run(loader, take, device, args.seconds or 5)
        config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
        report(args, config | {"dtype": "f32"} | run.record())
        del loader


def startup(args, device):
    """From the begin of an epoch to its first batch: of the first epoch, and of the second."""
    begun = perf_counter()
    torch.empty(1, device=device)
    synchronize(device)
    device_ms = 1e3 * (perf_counter() - begun)
    for variant in wanted(args, "tensor", *(["jpeg"] if args.data else [])):
        if variant == "tensor":
            rows = random_rows(args.samples or 20_000, torch.uint8, args.seed)
        begun = perf_counter()
        dataset = Rows(rows) if variant == "tensor" else images(args, "pil")
        open_ms = 1e3 * (perf_counter() - begun)
        for batch_size, workers in itertools.product(args.batch_size or [256], args.workers or [CORES]):
            loader = make_loader(args, device, dataset, workers, batch_size)
            for epoch in (1, 2):
                window = Window()
                batches = iter(loader)
                first = next(batches)
                cost = window.end()
                for _ in batches:  # the second epoch begins when the first is over
                    pass
                config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
                times = {"first_batch_ms": 1e3 * cost["window_s"], "epoch": epoch}
                times |= {"device_ms": device_ms, "open_ms": open_ms}
                more = {"dtype": "u8" if variant == "tensor" else "f32", "peak_rss_mb": memory_mb()}
                report(args, config | more | cost | times | {"pinned_mb": pinned_mb(device)})
            del first, batches, loader


def breakdown(args, device):
    """Loading, transfer and processing of a batch in milliseconds, each waited for: with pinning, and without."""
    step = Step(device, args.step_ms or 2)
    dataset = images(args, "pil") if args.data else Rows(random_rows(args.samples or 20_000, torch.uint8, args.seed))
    configs = itertools.product(args.batch_size or [256], args.workers or [CORES])
    for (batch_size, workers), variant in itertools.product(configs, wanted(args, "pinned", "not_pinned")):
        pin = variant == "pinned"
        loader = make_loader(args, device, dataset, workers, batch_size, pin=pin)
        for _ in loader:
            pass
        loading, transfer, processing = [], [], []
        sent = 0
        window = Window()
        while perf_counter() - window.begun < (args.seconds or 5):
            batches = iter(loader)
            while True:
                asked = perf_counter()
                batch = next(batches, None)
                if batch is None:
                    break
                loading.append(perf_counter() - asked)
                pictures = batch[0] if isinstance(batch, list) else batch
                transfer.append(timed(device, lambda: pictures.to(device, non_blocking=pin)))
                processing.append(timed(device, step.run))
                sent += pictures.nbytes
        cost = window.end()
        config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
        record = {
            "dtype": "f32" if args.data else "u8",
            "batches_s": len(loading) / cost["window_s"],
            "samples_s": sent / pictures[0].nbytes / cost["window_s"],
            "gb_s": sent / cost["window_s"] / 1e9,
            "wait_p50_ms": milliseconds(loading, 0.5),
            "wait_p99_ms": milliseconds(loading, 0.99),
            "peak_rss_mb": memory_mb(),
            "pinned_mb": pinned_mb(device),
            "loading_ms": 1e3 * statistics.mean(loading),
            "transfer_ms": 1e3 * statistics.mean(transfer),
            "processing_ms": 1e3 * statistics.mean(processing),
        }
        report(args, config | record | cost)
        del loader


def limits(args, device):
    """Copies by size, copies on the host by threads, and what page-locking costs."""
    cuda = device.type == "cuda"
    sizes = [size for size in (1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30) if size <= args.max_mb << 20]
    for pinned, size in itertools.product((True, False), sizes if cuda else []):
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        there = torch.zeros(size, dtype=torch.uint8, device=device)
        for way, rate in (("h2d", copy_rate(device, host, there)), ("d2h", copy_rate(device, there, host))):
            variant = f"{way}_{'pinned' if pinned else 'pageable'}"
            report(args, {"variant": variant, "device": str(device), "bytes": size, "gb_s": rate})
    size = sizes[-1]
    source, target = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    threads = torch.get_num_threads()
    for workers in args.workers or sorted({1, max(1, CORES // 2), CORES}):
        torch.set_num_threads(workers)
        rate = copy_rate(torch.device("cpu"), source, target)
        report(args, {"variant": "memcpy", "device": "cpu", "workers": workers, "bytes": size, "gb_s": rate})
    torch.set_num_threads(threads)
    if cuda:
        # A size that was not asked for before: PyTorch keeps page-locked memory.
        seconds = timed(device, lambda: torch.empty(3 * size // 2, dtype=torch.uint8, pin_memory=True))
        report(args, {"variant": "page_lock", "device": str(device), "bytes": 3 * size // 2, "lock_ms": 1e3 * seconds})


WORKLOADS = {
    work.__name__: work for work in (limits, tensor, tiny, roundtrip, overlap, jpeg, startup, breakdown)
}


def main():
    def listed(kind):
        return lambda text: [kind(item.strip()) for item in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--device", type=listed(torch.device), default=[torch.device("cpu")], help="cpu, cuda:N")
    parser.add_argument("--workers", type=listed(int), help="worker processes; 0: none")
    parser.add_argument("--batch-size", type=listed(int))
    parser.add_argument("--dtype", type=listed(str), help="u8, f32")
    parser.add_argument("--seconds", type=float, help="how long each result is measured (5; overlap: 2)")
    parser.add_argument("--data", help="a class folder of JPEGs")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--samples", type=int, help="samples in the data set")
    parser.add_argument("--variant", type=listed(str), help="only these variants")
    parser.add_argument("--prefetch", type=int, default=2, help="batches that each worker loads ahead (2)")
    parser.add_argument("--frames", type=int, default=10, help="roundtrip: frames in the batch (10)")
    parser.add_argument("--pairs", type=int, default=7, help="overlap: with and without loading, so often (7)")
    parser.add_argument("--step-ms", type=float, help="how long the device works on a batch (20; breakdown: 2)")
    parser.add_argument("--max-mb", type=int, default=1024, help="limits: the largest copy in MiB (1024)")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores: as asked for
    for device in args.device:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        WORKLOADS[args.workload](args, device)


if __name__ == "__main__":
    main()
