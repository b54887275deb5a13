"""A ResNet-50 in PyTorch, fed by several loaders: the same script, of which two lines change.

    python python/benches/resnet50.py FOLDER [--cores 4,8,16] [--loaders torch,torch-best,torch-gpu,timm,dali,pinfeed-both] [--seconds 8]

FOLDER has a folder of JPEG files for each class (benches/peers/photos.py draws one). It needs torch and torchvision, and of the other loaders those that
are named; one that is not installed is left out, which is said. `--device cpu --model resnet18` shows that it works on a machine without a GPU, and no more.

Each line is a process of its own, which may use so many cores. It trains on random weights, bf16 by autocast, channels last, SGD with
momentum, batches of 256, on endless shuffled epochs; the host runs at most two steps ahead of the GPU. First comes the step alone, on one batch, then the loop: a
warm-up, and what is measured. A line says

    images/s     of the loop
    of the step  the time of the step alone as a share of the loop's: the rest of it, the GPU was idle or shared with the loader
    waiting      the share of the loop's time that `next` took
    cores        that its processes kept busy
    memory       of its processes, each shared page counted once (PSS), MiB
    first batch  ms from `iter` to the first batch on the device
    share        of the pictures that the GPU decodes, with `decode="both"`, as this loader measured it

The loaders, each as its own experts set it up; all crop to 224 (RandomResizedCrop), flip, and normalize:

    torch         PyTorch's ImageNet example: PIL, normalized by the workers, page-locked, non-blocking
    torch-best    files decoded by torchvision (libjpeg-turbo) to uint8, cropped there, copied as bytes, normalized on the GPU; four batches ahead each
    torch-gpu     files read by the workers, decoded in whole batches by torchvision on the GPU, a batch ahead in a thread, and cropped there
    timm          timm's loader: PIL, bytes to the GPU on a stream of their own, normalized there
    dali          fn.decoders.image on the GPU, of which the hardware decodes all; cropped and normalized there, channels last
    dali-most     the same, of which the hardware decodes 0.9, and the GPU's own cores the rest
    torchcodec    files decoded by torchcodec to uint8, otherwise as torch-best
    pinfeed       num_workers as many as cores, device=, channels_last=True
    pinfeed-both  the same with decode="both"
    pinfeed-4     four workers and decode="both", whatever the cores
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SIZE, BATCH = 224, 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class NotHere(Exception):
    """A loader cannot be had on this machine; its text says why."""


def endless(loader):
    while True:
        yield from loader


def normalized(batches, device):
    """Bytes on the host become normalized floats on the device."""
    import torch

    mean = 255 * torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    std = 255 * torch.tensor(STD, device=device).view(1, 3, 1, 1)
    for images, labels in batches:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        yield (images.to(torch.float32, memory_format=torch.channels_last) - mean) / std, labels


def of_torch(asked, data, **more):
    """PyTorch's loader: shuffled epochs that follow each other without a pause, as one order, which timm's `MultiEpochsDataLoader` does too. A folder of some
    thousand pictures would end an epoch every few seconds, and workers would wait there."""
    from torch.utils.data import DataLoader, RandomSampler

    endless_order = RandomSampler(data, num_samples=1_000_000_000 // len(data) * len(data))
    return DataLoader(data, batch_size=asked.batch_size, sampler=endless_order, num_workers=asked.workers, pin_memory=asked.device != "cpu", **more)


def torch_example(asked):
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    for images, labels in of_torch(asked, datasets.ImageFolder(asked.folder, transforms.Compose(steps))):
        yield images.to(asked.device, non_blocking=True), labels.to(asked.device, non_blocking=True)


def folder_of(asked, decode):
    """Files decoded to uint8 by this function, cropped and flipped as such."""
    from torchvision import datasets
    from torchvision.transforms import v2

    steps = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    return datasets.ImageFolder(asked.folder, steps, loader=decode)


def torch_best(asked):
    import torchvision.io as io

    def decode(path):
        return io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)

    return normalized(of_torch(asked, folder_of(asked, decode), prefetch_factor=4), asked.device)


def end_to_end(samples):
    """Files that are not decoded, one after the other, their lengths, and the labels."""
    import torch

    files, labels = zip(*samples)
    return torch.cat(files), [len(file) for file in files], torch.tensor(labels)


def torch_gpu(asked):
    if asked.device == "cpu":
        raise NotHere("torch-gpu: it decodes on GPUs")
    import math
    import random
    from concurrent.futures import ThreadPoolExecutor

    import torch
    import torchvision.io as io
    from torchvision import datasets

    def crop(picture):
        """As RandomResizedCrop, which draws by tensors, and takes longer for that than the GPU for the rest."""
        height, width = picture.shape[1:]
        for _ in range(10):
            area, ratio = height * width * random.uniform(0.08, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        else:
            w = h = min(width, height)
        top, left = random.randint(0, height - h), random.randint(0, width - w)
        part = picture[None, :, top : top + h, left : left + w].float()
        part = torch.nn.functional.interpolate(part, (SIZE, SIZE), mode="bilinear", antialias=True)
        return part.flip(3) if random.random() < 0.5 else part

    loader = of_torch(asked, datasets.ImageFolder(asked.folder, loader=io.read_file), prefetch_factor=4, collate_fn=end_to_end)
    batches = iter(loader)

    def decoded():
        files, lengths, labels = next(batches)
        return io.decode_jpeg(list(files.split(lengths)), mode=io.ImageReadMode.RGB, device=asked.device), labels

    mean = 255 * torch.tensor(MEAN, device=asked.device).view(1, 3, 1, 1)
    std = 255 * torch.tensor(STD, device=asked.device).view(1, 3, 1, 1)
    with ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(decoded)
        while True:
            pictures, labels = ahead.result()
            ahead = thread.submit(decoded)
            images = torch.cat([crop(picture) for picture in pictures]).to(memory_format=torch.channels_last)
            yield (images - mean) / std, labels.to(asked.device, non_blocking=True)


def torchcodec(asked):
    try:
        from torchcodec.decoders import decode_image
    except Exception as error:  # it is missing, has no pictures, or no FFmpeg
        raise NotHere(f"torchcodec: {error}") from error

    def decode(path):
        return decode_image(Path(path).read_bytes(), mode="RGB")

    return normalized(of_torch(asked, folder_of(asked, decode), prefetch_factor=4), asked.device)


def timm(asked):
    try:
        from timm.data import create_transform
        from timm.data.loader import PrefetchLoader, fast_collate
    except ImportError as error:
        raise NotHere(f"timm: {error}") from error
    if asked.device == "cpu":
        raise NotHere("timm: its prefetcher is for GPUs")
    import torch
    from torchvision import datasets

    transform = create_transform(SIZE, is_training=True, color_jitter=None, interpolation="bilinear", use_prefetcher=True)
    data = datasets.ImageFolder(asked.folder, transform)
    loader = of_torch(asked, data, collate_fn=fast_collate)
    return PrefetchLoader(loader, mean=MEAN, std=STD, device=torch.device(asked.device))


def dali(asked, load):
    try:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIGenericIterator
    except ImportError as error:
        raise NotHere(f"DALI: {error}") from error
    if asked.device == "cpu":
        raise NotHere("DALI: it decodes on GPUs here")

    @pipeline_def
    def graph():
        files, labels = fn.readers.file(file_root=asked.folder, random_shuffle=True, initial_fill=4096, name="Reader")
        images = fn.decoders.image(
            files, device="mixed", output_type=types.RGB, hw_decoder_load=load, preallocate_width_hint=1024, preallocate_height_hint=1024
        )
        images = fn.random_resized_crop(images, size=[SIZE, SIZE])
        images = fn.crop_mirror_normalize(
            images, mirror=fn.random.coin_flip(), dtype=types.FLOAT, output_layout="HWC", mean=[255 * value for value in MEAN], std=[255 * value for value in STD]
        )
        return images, labels.gpu()

    pipeline = graph(batch_size=asked.batch_size, num_threads=max(asked.workers, 1), device_id=0, seed=17, prefetch_queue_depth=2)
    for (batch,) in DALIGenericIterator(pipeline, ["images", "labels"], size=-1):
        yield batch["images"].permute(0, 3, 1, 2), batch["labels"].squeeze(-1).long()


SHARE = []  # asks this loader which share of the pictures the GPU decodes


def ours(asked, decode="cpu", workers=None):
    import pinfeed
    from pinfeed import transforms as T

    try:
        data = pinfeed.ImageFolder(asked.folder, T.train(SIZE, channels_last=True), decode=decode)
        loader = pinfeed.DataLoader(
            data,
            batch_size=asked.batch_size,
            shuffle=True,
            seed=17,
            drop_last=True,
            num_workers=asked.workers if workers is None else workers,
            device=None if asked.device == "cpu" else asked.device,
            device_share=asked.device_share if decode == "both" else None,
        )
    except pinfeed.DeviceError as error:
        raise NotHere(f"pinfeed, decode={decode!r}: {error}") from error
    SHARE.append(lambda: loader.stats().device_share)
    for images, labels in endless(loader):
        yield images.permute(0, 3, 1, 2), labels


LOADERS = {
    "torch": torch_example,
    "torch-best": torch_best,
    "torch-gpu": torch_gpu,
    "timm": timm,
    "dali": lambda asked: dali(asked, 1.0),
    "dali-most": lambda asked: dali(asked, 0.9),
    "torchcodec": torchcodec,
    "pinfeed": ours,
    "pinfeed-both": lambda asked: ours(asked, "both"),
    "pinfeed-4": lambda asked: ours(asked, "both", 4),
}


# What the machine says of this process and its children.


def family():
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [os.getpid()]
    for process in found:
        found.extend(child for child, parent in parents.items() if parent == process)
    return found


def cpu_seconds():
    ticks = 0
    for process in family():
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib():
    kib = 0
    for process in family():
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024


# One line of the table, in a process of its own.


def measured(asked):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.workers])
    import torch
    import torchvision

    device = torch.device(asked.device)
    is_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(17)
    model = getattr(torchvision.models, asked.model)().to(device, memory_format=torch.channels_last).train()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images, labels):
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)
        sgd.zero_grad(set_to_none=True)
        loss.backward()
        sgd.step()

    def synchronize():
        if is_gpu:
            torch.cuda.synchronize(device)

    events = collections.deque()

    def turn(seconds, least, batch, batches=None):
        """As many steps as fit, the host two ahead. Returns their number, their time, what waiting for batches took, and the last batch."""
        synchronize()
        begun, count, waited = time.perf_counter(), 0, 0.0
        while count < least or time.perf_counter() - begun < seconds:
            if batches is not None:
                before = time.perf_counter()
                batch = next(batches)
                waited += time.perf_counter() - before
            step(*batch)
            count += 1
            if is_gpu:
                events.append(torch.cuda.Event())
                events[-1].record()
                if len(events) > 2:
                    events.popleft().synchronize()
        synchronize()
        return count, time.perf_counter() - begun, waited, batch

    # The step alone, before there is a loader whose workers take cores. (The first use of the GPU is no loader's, either.)
    noise = torch.randn(asked.batch_size, 3, SIZE, SIZE, device=device).to(memory_format=torch.channels_last)
    held = noise, torch.randint(1000, (asked.batch_size,), device=device)
    turn(0, 3, held)
    alone_steps, alone, _, _ = turn(asked.seconds / 3, 2, held)

    begun = time.perf_counter()
    batches = iter(LOADERS[asked.one](asked))
    batch = next(batches)
    synchronize()
    first = time.perf_counter() - begun
    assert batch[0].shape == (asked.batch_size, 3, SIZE, SIZE) and batch[0].device.type == device.type, batch[0].shape
    assert abs(batch[0].float().mean()) < 2 and 0.3 < batch[0].float().std() < 3, "the pictures are not normalized"

    # Workers of PyTorch's make batches of their own, which come in bursts: the warm-up has two of them, and what is measured at least three. This loader finds in
    # its first batches which pictures the GPU decodes, by the time between them: steps come from the first one on, as in a program.
    _, _, _, batch = turn(asked.seconds / 2, max(2 * asked.workers, asked.warm_up), batch, batches)
    before = cpu_seconds()
    steps, loop, waited, _ = turn(asked.seconds, 3 * asked.workers, batch, batches)
    busy = cpu_seconds() - before
    return {
        "loader": asked.one,
        "cores": asked.workers,
        "images_s": steps * asked.batch_size / loop,
        "of_step": (alone / alone_steps) / (loop / steps),
        "step_ms": 1e3 * alone / alone_steps,
        "waiting": waited / loop,
        "busy_cores": busy / loop,
        "memory_mib": memory_mib(),
        "first_batch_ms": 1e3 * first,
        "device_share": SHARE[0]() if SHARE else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--cores", default="4,8,16")
    parser.add_argument("--loaders", default=",".join(LOADERS))
    parser.add_argument("--seconds", type=float, default=8.0, help="of the loop, for each line")
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--warm-up", type=int, default=40, help="batches before what is measured")
    parser.add_argument("--device-share", type=float, help="of the pictures, for pinfeed-both and pinfeed-4, in place of what is measured")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, instead of a table")
    parser.add_argument("--one", choices=LOADERS, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        try:
            print(json.dumps(measured(asked)), flush=True)
        except NotHere as reason:
            print(json.dumps({"missing": str(reason)}), flush=True)
        os._exit(0)  # (some loaders wait at the exit for threads of an epoch that was left)
    if not asked.json:
        print("| loader | cores | images/s | of the step | step ms | waiting | busy cores | memory MiB | first batch ms | share |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    environment = dict(os.environ, CUDA_DEVICE_MAX_CONNECTIONS="32", OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
    if asked.device == "cpu":
        environment.pop("OMP_NUM_THREADS")
    for cores in [int(cores) for cores in asked.cores.split(",")]:
        if cores > len(os.sched_getaffinity(0)):
            print(f"this process may use {len(os.sched_getaffinity(0))} cores: {cores} are left out", file=sys.stderr)
            continue
        for loader in asked.loaders.split(","):
            command = [sys.executable, __file__, asked.folder, "--one", loader, "--workers", str(cores), "--seconds", str(asked.seconds)]
            command += ["--batch-size", str(asked.batch_size), "--model", asked.model, "--device", asked.device, "--warm-up", str(asked.warm_up)]
            command += [] if asked.device_share is None else ["--device-share", str(asked.device_share)]
            try:
                child = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120 + 10 * asked.seconds)
            except subprocess.TimeoutExpired:
                print(f"{loader} with {cores} cores: no result in time", file=sys.stderr)
                continue
            lines = [line for line in child.stdout.splitlines() if line.startswith("{")]
            if not lines:
                print(f"{loader} with {cores} cores failed:\n{child.stderr[-800:]}", file=sys.stderr)
                continue
            line = json.loads(lines[-1])
            if "missing" in line:
                print(line["missing"], file=sys.stderr)
            elif asked.json:
                print(json.dumps(line), flush=True)
            else:
                print(
                    f"| {line['loader']} | {cores} | {line['images_s']:.0f} | {100 * line['of_step']:.1f} % | {line['step_ms']:.2f} | {100 * line['waiting']:.1f} % "
                    f"| {line['busy_cores']:.1f} | {line['memory_mib']:.0f} | {line['first_batch_ms']:.0f} | {'' if line['device_share'] is None else format(line['device_share'], '.2f')} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
