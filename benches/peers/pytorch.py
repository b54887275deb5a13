#!/usr/bin/env python3
"""How fast does PyTorch feed a device? The workloads of pinfeed's `feed` bench, with its options and its keys.

    python3 pytorch.py tensor --device cuda:0 --workers 0,8,16 --seconds 5 --json

Needs torch, and torchvision (with Pillow) for `jpeg`. PyTorch is used as its documentation advises: worker processes
that persist, page-locked batches, non-blocking copies. Where users know a faster way, that is a variant of its own.

A result counts the CPU seconds and the memory of worker processes too: memory that processes share counts once.
"""

import argparse
import gc
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


def make_loader(args, device, dataset, workers, batch_size, collate=default_collate, pin=True):
    pin = pin and device.type == "cuda"
    more = {}
    if workers:
        more = {"persistent_workers": True, "prefetch_factor": args.prefetch, "multiprocessing_context": "fork"}
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        generator=torch.Generator().manual_seed(args.seed),
        **more,
    )
    return loader if len(loader) else sys.exit("the data set does not fill one batch: raise --samples")


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
    dataset, collate = {
        "workers": (Rows, default_collate),
        "no_workers": (Rows, default_collate),
        "batched": (Batches, as_it_is),
        "floats": (Floats, default_collate),
    }[variant]
    return make_loader(args, device, dataset(rows), workers, batch_size, collate)


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
            for variant in wanted(args, *(["workers"] if workers else ["no_workers", "batched"])):
                limits = [limit_gb_s(device, size)]
                loader = rows_loader(args, device, variant, rows, workers, batch_size)
                run = Run(loader, take, device, args.seconds or 5)
                limits.append(limit_gb_s(device, size))
                limit = None if None in limits else statistics.mean(limits)
                config = {"variant": variant, "device": str(device), "workers": workers, "batch_size": batch_size}
                report(args, config | {"dtype": name, "limit_gb_s": limit} | run.record())
                del loader
        del rows


def tiny(args, _):
    host = torch.device("cpu")
    scalars = torch.arange(args.samples or 1_000_000, dtype=torch.float32)

    def take(batch):
        return len(batch), batch.nbytes

    for batch_size, workers in itertools.product(args.batch_size or [32], args.workers or [0, 4]):
        for variant in wanted(args, *(["workers"] if workers else ["no_workers", "batched"]), "floats"):
            rows = scalars.tolist() if variant == "floats" else scalars
            loader = rows_loader(args, host, variant, rows, workers, batch_size)
            run = Run(loader, take, host, args.seconds or 5)
            config = {"variant": variant, "device": "cpu", "workers": workers, "batch_size": batch_size}
            record = {"dtype": "f64" if variant == "floats" else "f32"} | run.record()
            report(args, config | record | {"gb_s": None, "ns_per_batch": 1e9 / record["batches_s"]})


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

    for variant in wanted(args, "pageable", "pin_each", "reused", "staged"):
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

    Samples cost so much CPU that loading, with half of the cores, takes 0.8 of a step.
    """
    step = Step(device, args.step_ms or 20)
    warm, count = 10, max(20, int((args.seconds or 2) / step.seconds))
    rows = random_rows(2_000, torch.uint8, args.seed)
    for batch_size, workers in itertools.product(args.batch_size or [256], args.workers or [max(1, CORES // 2)]):
        # More batches than it takes: no epoch's end lies in a window.
        dataset = Busy(rows, (2_000 + count) * batch_size)
        loader = make_loader(args, device, dataset, workers, batch_size)
        load_share = calibrate(args, loader, 0.8 * step.seconds) / step.seconds
        del loader

        def loaded():
            nonlocal peak
            loader = make_loader(args, device, dataset, workers, batch_size)
            batches = iter(loader)
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
            "variant": "loss",
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
    """From the begin of an epoch to its first batch, and to its arrival on the device: first and second epoch."""
    for variant in wanted(args, "tensor", *(["jpeg"] if args.data else [])):
        if variant == "tensor":
            rows = random_rows(args.samples or 20_000, torch.uint8, args.seed)
        for batch_size, workers in itertools.product(args.batch_size or [256], args.workers or [CORES]):
            forget_pinned(device)
            window = Window()
            dataset = Rows(rows) if variant == "tensor" else images(args, "pil")
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
                "dtype": "u8" if variant == "tensor" else "f32",
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
            report(args, record | window.end())
            del first, batches, loader


def pictures_of(batch):
    return batch[0] if isinstance(batch, list) else batch


def breakdown(args, device):
    """Loading, transfer and processing of a batch in milliseconds, each waited for: with pinning, and without."""
    step = Step(device, args.step_ms or 2)
    dataset = images(args, "pil") if args.data else Rows(random_rows(args.samples or 20_000, torch.uint8, args.seed))
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
            "dtype": "f32" if args.data else "u8",
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
    work.__name__: work for work in (limits, tensor, tiny, roundtrip, overlap, jpeg, startup, breakdown)
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
