#!/usr/bin/env python3
"""How fast does NVIDIA DALI feed a GPU with JPEG files? The workload `jpeg` of pinfeed's `feed` bench, with its keys.

    python3 dali.py FOLDER --threads 1,2,4,8,16 --loads 1.0,0.9,0.65 --seconds 3 --json
    python3 dali.py FOLDER --best --json

Needs DALI (`pip install nvidia-dali-cuda130`, or cuda120) and a class folder of JPEGs (photos.py draws one). It needs no torch:
batches are taken by `Pipeline.run()`, which returns when they are complete on the device.

A batch: files in shuffled order are decoded, cropped at random to 224 and flipped, and normalised to `f32` NCHW on the GPU.

- `whole`: `fn.decoders.image` decodes whole pictures. The hardware decoder takes `hw_decoder_load` of each batch (`--loads`),
  the pipeline's threads take the rest. `fn.random_resized_crop` and `fn.crop_mirror_normalize` follow on the GPU.
- `fused`: `fn.decoders.image_random_crop` decodes and crops, and `fn.resize` follows: NVIDIA's ResNet-50 example. With
  `hw_decoder_load=0.9` the hardware decoder was busy for 85 to 90 % of the time (DALI 2.4, an H100, 16 threads).
- `cpu`: the same by the CPU alone, up to the resized bytes.

DALI's own cache of decoded pictures is not used: it serves data sets whose decoded pictures fit into the GPU's memory.

`--best` searches. It tries each number of threads with each load, then the knobs below on the best of them, then those together
that helped. In the end it measures the best of each number of threads, with knobs and without, in turns, twice: these are the
lines to quote. The tries are printed too, with `"round":0`. `--set queue=4,mmap=0` measures particular settings:

    hint          preallocate_width_hint and preallocate_height_hint: memory for the hardware decoder (1024)
    queue         prefetch_queue_depth of the pipeline (2)
    reader_queue  prefetch_queue_depth of the reader (1)
    mmap          0: the reader reads files instead of mapping them (dont_use_mmap)
    affinity      1: threads are bound to the cores next to the GPU (set_affinity)
    executor      dynamic; static: exec_dynamic=False; separate: with queues of their own for CPU and GPU
    overlap       backend; full: OperatorConcurrency.FULL and StreamPolicy.PER_OPERATOR
    padding       device_memory_padding in MiB; host_memory_padding is half of it (16)

Each measurement is a process of its own.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
CORES = len(os.sched_getaffinity(0))

# What is set by default, and what else `--best` tries.
KNOBS = {
    "hint": (1024, [0]),
    "queue": (2, [3, 4]),
    "reader_queue": (1, [2, 4]),
    "mmap": (1, [0]),
    "affinity": (0, [1]),
    "executor": ("dynamic", ["static", "separate"]),
    "overlap": ("backend", ["full"]),
    "padding": (16, [64]),
}
# A knob helps if it brings more than this: two runs of the same settings differ by as much.
HELPS = 1.03
# What a process takes until its pipeline runs, in seconds.
STARTS = 5


@dataclass(frozen=True)
class Settings:
    """One pipeline, and how long it is measured."""

    folder: str
    device: int | None  # None: the CPU
    variant: str
    threads: int
    load: float | None
    batch_size: int
    seed: int
    knobs: dict = field(default_factory=dict)  # those that are not as by default

    def knob(self, name):
        return self.knobs.get(name, KNOBS[name][0])

    def key(self):
        return (self.variant, self.threads, self.load, tuple(sorted(self.knobs.items())))

    def knobs_text(self):
        return ",".join(f"{name}={value}" for name, value in sorted(self.knobs.items())) or "default"


# The pipelines.


def pipeline(settings):
    from nvidia.dali import OperatorConcurrency, Pipeline, StreamPolicy, fn, types

    queue, executor = settings.knob("queue"), {}
    if settings.knob("executor") != "dynamic":
        executor["exec_dynamic"] = False
    if settings.knob("executor") == "separate":
        queue = {"cpu_size": 2 * queue, "gpu_size": queue}
    if settings.knob("overlap") == "full":
        executor |= {"concurrency": OperatorConcurrency.FULL, "stream_policy": StreamPolicy.PER_OPERATOR}
    pipe = Pipeline(
        batch_size=settings.batch_size,
        num_threads=settings.threads,
        device_id=settings.device,
        seed=settings.seed,
        prefetch_queue_depth=queue,
        set_affinity=bool(settings.knob("affinity")),
        **executor,
    )
    with pipe:
        files, labels = fn.readers.file(
            file_root=settings.folder,
            random_shuffle=True,
            prefetch_queue_depth=settings.knob("reader_queue"),
            dont_use_mmap=not settings.knob("mmap"),
        )
        crop = {"random_area": AREA, "random_aspect_ratio": ASPECT}
        if settings.variant == "whole":
            images = fn.decoders.image(files, output_type=types.RGB, **mixed(settings))
            images = fn.random_resized_crop(images, size=[SIDE, SIDE], **crop)
        else:
            where = mixed(settings) if settings.variant == "fused" else {"device": "cpu"}
            images = fn.decoders.image_random_crop(files, output_type=types.RGB, **crop, **where)
            images = fn.resize(images, resize_x=SIDE, resize_y=SIDE)
        if settings.device is not None:
            images, labels = images.gpu(), labels.gpu()
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(probability=0.5),
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
        )
        pipe.set_outputs(images, labels)
    return pipe


def mixed(settings):
    """Where a decoder that uses the GPU does so, and by how much its hardware."""
    padding = settings.knob("padding") << 20
    return {
        "device": "mixed",
        "hw_decoder_load": settings.load,
        "preallocate_width_hint": settings.knob("hint"),
        "preallocate_height_hint": settings.knob("hint"),
        "device_memory_padding": padding,
        "host_memory_padding": padding // 2,
    }


def open_device(settings):
    """The process's first use of the GPU: not to be counted as the first batch's."""
    from nvidia.dali import Pipeline, fn

    if settings.device is not None:
        pipe = Pipeline(batch_size=1, num_threads=1, device_id=settings.device)
        with pipe:
            pipe.set_outputs(fn.zeros(shape=[1]).gpu())
        pipe.run()


# Measuring, in a process of its own.


class Engines:
    """How busy the driver says that the GPU's JPEG decoder is, in percent: asked for once, beside the warm-up."""

    def __init__(self, device):
        self.asked = None
        ask = ["nvidia-smi", f"--id={device}", "--query-gpu=utilization.jpeg", "--format=csv,noheader,nounits"]
        try:
            if device is not None:
                self.asked = subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:  # there is no nvidia-smi
            pass

    def pending(self):
        return self.asked is not None and self.asked.poll() is None

    def percent(self):
        answer = self.asked.communicate()[0].strip() if self.asked else ""
        return int(answer) if answer.isdigit() else None


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_rss_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), None)


def check(settings, images):
    """The batch is what it is meant to be: so many normalised pictures, where they belong."""
    shape, where = images.shape(), type(images).__name__
    if shape != [(3, SIDE, SIDE)] * settings.batch_size or ("GPU" in where) != (settings.device is not None):
        sys.exit(f"unexpected batch: {len(shape)} of {shape[0]}, {where}")
    values = (images.as_cpu() if settings.device is not None else images).as_array()
    if str(values.dtype) != "float32" or abs(values.mean()) > 2 or not 0.3 < values.std() < 3:
        sys.exit(f"unexpected values: {values.dtype}, mean {values.mean()}, deviation {values.std()}")


def measure(settings, seconds, warmup):
    import nvidia.dali

    open_device(settings)
    begun = perf_counter()
    pipe = pipeline(settings)
    pipe.build()
    images, _ = pipe.run()
    first = perf_counter() - begun
    check(settings, images)

    engines, begun = None, perf_counter()
    while (since := perf_counter() - begun) < warmup or (engines is not None and engines.pending()):
        pipe.run()
        if engines is None and since > warmup / 2:
            engines = Engines(settings.device)
    busy = engines.percent() if engines else None

    waits, cpu, begun = [], cpu_seconds(), perf_counter()
    given = begun
    while given - begun < seconds:
        pipe.run()  # the batch before it goes back to DALI
        asked, given = given, perf_counter()
        waits.append(given - asked)
    window, cpu = given - begun, cpu_seconds() - cpu

    waits.sort()
    batches = len(waits)
    return {
        "workload": "jpeg",
        "peer": "dali " + ".".join(nvidia.dali.__version__.split(".")[:2]),
        "variant": settings.variant,
        "device": "cpu" if settings.device is None else f"cuda:{settings.device}",
        "workers": settings.threads,
        "batch_size": settings.batch_size,
        "dtype": "f32",
        "samples_s": batches * settings.batch_size / window,
        "batches_s": batches / window,
        "gb_s": None,
        "limit_gb_s": None,
        "share": None,
        "first_batch_ms": 1e3 * first,
        "wait_p50_ms": 1e3 * waits[round((batches - 1) * 0.5)],
        "wait_p99_ms": 1e3 * waits[round((batches - 1) * 0.99)],
        "cpu_s": cpu,
        "window_s": window,
        "cores": cpu / window,
        "peak_rss_mb": peak_rss_mb(),
        "pinned_mb": None,
        "prefetch": settings.knob("queue"),
        "hw_decoder_load": settings.load,
        "jpeg_engines_percent": busy,
        "set": settings.knobs_text(),
    }


# Asking for measurements.


class Session:
    def __init__(self, args):
        self.args = args
        self.tried = {}

    def run(self, settings, seconds, **more):
        """A result, printed; None if DALI failed."""
        job = json.dumps({"settings": asdict(settings), "seconds": seconds, "warmup": self.args.warmup})
        limit = 60 + 2 * STARTS + 4 * (seconds + self.args.warmup)
        try:
            child = subprocess.run(
                [sys.executable, __file__, "--one", job], capture_output=True, text=True, timeout=limit
            )
            record = json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else None
            complaint = child.stderr.strip()
        except subprocess.TimeoutExpired:
            record, complaint = None, f"no result after {limit:.0f} s"
        if record is None:
            last = complaint.splitlines()[-1:] or ["it says nothing"]
            print(f"failed: {describe(settings)}: {last[0]}", file=sys.stderr)
            return None
        report(self.args, record | more)
        return record

    def attempt(self, settings):
        """A short look, of which the rate counts."""
        if settings.key() not in self.tried:
            record = self.run(settings, self.args.try_seconds, round=0)
            self.tried[settings.key()] = (record["samples_s"] if record else 0.0, settings)
        return self.tried[settings.key()][0]

    def leader(self, threads, knobs=None):
        """The best of what was tried with so many threads, with any knobs or with these."""
        found = [
            (rate, settings)
            for rate, settings in self.tried.values()
            if settings.threads == threads and knobs in (None, settings.knobs)
        ]
        rate, settings = max(found, key=lambda entry: entry[0], default=(0.0, None))
        return settings if rate else None


def describe(settings):
    load = "" if settings.load is None else f", load {settings.load}"
    return f"{settings.variant}, {settings.threads} threads{load}, {settings.knobs_text()}"


def report(args, record):
    for key, value in record.items():
        if isinstance(value, float):
            record[key] = float(f"{value:.5g}")
    if args.json:
        print(json.dumps(record, separators=(",", ":")), flush=True)
    else:
        print(" ".join(f"{key}={value}" for key, value in record.items() if value is not None), flush=True)


def settings_of(args, variant, threads, load):
    return Settings(
        folder=args.folder,
        device=None if args.device == "cpu" else int(args.device.partition(":")[2] or 0),
        variant=variant,
        threads=threads,
        load=None if variant == "cpu" else load,
        batch_size=args.batch_size,
        seed=args.seed,
        knobs=dict(args.set),
    )


def sweep(args):
    """Each variant with each number of threads and each load."""
    session, seen, measured = Session(args), set(), []
    for variant, threads, load in itertools.product(args.variant, args.threads, args.loads):
        settings = settings_of(args, variant, threads, load)
        if settings.key() not in seen:
            seen.add(settings.key())
            measured.append(session.run(settings, args.seconds))
    return any(measured)


def best(args):
    """Looks for the best settings of each number of threads, and measures those, in turns, twice."""
    session, begun = Session(args), perf_counter()
    measured = 2 * 2 * len(args.threads) * (args.seconds + args.warmup + STARTS)

    def time_is_left():
        return perf_counter() - begun + measured + args.try_seconds + args.warmup + STARTS < args.budget

    def attempt(settings):
        return session.attempt(settings) if time_is_left() else 0.0

    for variant in args.variant:
        loads = args.loads if variant == "whole" else args.loads[-1:]
        for load, threads in itertools.product(loads, args.threads):
            # Without the hardware decoder, all that counts is how many threads there are.
            if variant == "whole" or "whole" not in args.variant or threads == max(args.threads):
                attempt(settings_of(args, variant, threads, load))
    leaders = list(filter(None, map(session.leader, args.threads)))
    leaders.sort(key=lambda leader: -session.attempt(leader))
    for leader in leaders:  # the best first, for time is short
        base, helped = session.attempt(leader), {}
        for name, (_, others) in KNOBS.items():
            rates = {other: attempt(replace(leader, knobs=leader.knobs | {name: other})) for other in others}
            other = max(rates, key=rates.get)
            if rates[other] > HELPS * base:
                helped[name] = other
        if len(helped) > 1:
            attempt(replace(leader, knobs=leader.knobs | helped))

    finalists = {}
    for threads, knobs in itertools.product(sorted(args.threads), (dict(args.set), None)):
        if leader := session.leader(threads, knobs):
            finalists[leader.key()] = leader
    results = {}
    for number in (1, 2):
        for settings in finalists.values():
            if record := session.run(settings, args.seconds, round=number):
                results.setdefault(settings.key(), (settings, []))[1].append(record)
    print(f"tried {len(session.tried)} settings in {perf_counter() - begun:.0f} s with the rest", file=sys.stderr)
    rates = {key: [record["samples_s"] for record in records] for key, (_, records) in results.items()}
    for key in sorted(rates, key=lambda key: -max(rates[key])):
        settings, records = results[key]
        shown = " and ".join(f"{record['samples_s']:,.0f} ({record['cores']:.1f} cores)" for record in records)
        print(f"{shown}: {describe(settings)}", file=sys.stderr)
    return bool(results)


def knob(text):
    name, _, value = text.partition("=")
    if name not in KNOBS:
        raise argparse.ArgumentTypeError(f"`{name}` is none of {', '.join(KNOBS)}")
    kind = type(KNOBS[name][0])
    try:
        return name, kind(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name}: `{value}` is no number") from None


def main():
    def listed(kind):
        return lambda text: [kind(item.strip()) for item in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="a class folder of JPEGs")
    parser.add_argument("--device", default="cuda:0", help="cuda:N; cpu: the variant cpu, without any GPU")
    parser.add_argument("--threads", type=listed(int), default=[1, 2, 4, 8, 16], help="of the pipeline (1,2,4,8,16)")
    parser.add_argument("--loads", type=listed(float), default=[1.0, 0.9, 0.8, 0.65], help="hw_decoder_load (1.0,0.9,0.8,0.65)")
    parser.add_argument("--variant", type=listed(str), help="whole, fused, cpu (all with --best, else whole)")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3, help="how long each result is measured (3)")
    parser.add_argument("--warmup", type=float, default=1, help="seconds before that (1)")
    parser.add_argument("--set", type=listed(knob), default=[], help="knobs, as in queue=4,mmap=0")
    parser.add_argument("--best", action="store_true", help="search, then measure the best twice")
    parser.add_argument("--try-seconds", type=float, default=1, help="--best: how long a try is measured (1)")
    parser.add_argument("--budget", type=float, default=420, help="--best: seconds for all of it (420)")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        job = json.loads(args.one)
        print(json.dumps(measure(Settings(**job["settings"]), job["seconds"], job["warmup"])))
        return
    if args.folder is None or not Path(args.folder).is_dir():
        parser.error(f"{args.folder}: no folder")
    if args.variant is None:
        args.variant = ["whole", "fused", "cpu"] if args.best else ["whole"]
    if args.device == "cpu":
        args.variant = ["cpu"]
    for variant in args.variant:
        if variant not in ("whole", "fused", "cpu"):
            parser.error(f"--variant {variant}: whole, fused or cpu")
    if not (best if args.best else sweep)(args):
        sys.exit("nothing was measured")


if __name__ == "__main__":
    main()
