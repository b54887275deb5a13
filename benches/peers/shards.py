#!/usr/bin/env python3
"""How fast do webdataset and LitData feed a device with JPEGs from a bucket? The workload `shards` of pinfeed's `feed` bench.

    cargo bench --bench feed -- shards --variant serve --server s3s-fs --latency-ms 50    # prints an endpoint
    python3 shards.py --endpoint http://127.0.0.1:4711 --device cuda:0 --workers 4,16 --seconds 10 --json

Needs torch, torchvision, webdataset, litdata and what they need. Each is used as its documentation advises: webdataset resamples shards,
so that all workers have as many, reads them by `curl` under signed URLs, and shuffles a buffer of 1,000; LitData's raw mode
(`StreamingRawDataset`) takes the files as they are, and requests a batch's at once. Workers are processes that persist and have one
thread each; batches are page-locked and load ahead.

Variants: `webdataset` and `litdata` decode on the CPU, by Pillow or by torchvision, which is faster (`--cpu`); `webdataset_gpu` and
`litdata_gpu` decode a whole batch on the GPU by `torchvision.io.decode_jpeg`. LitData's samples have no labels, which costs it nothing.
"""

import argparse
import io
import json
import os
import sys
import time

from pytorch import CORES, MEAN, SIDE, STD, DecodedThere  # (first: torchvision looks for a package of this name, and takes this one)

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

BUCKET = "bucket"
AHEAD = 4  # batches that each worker loads ahead


class Picture:
    """Bytes of a JPEG to an augmented `u8` picture."""

    def __init__(self, by):
        self.by_pillow = by == "pil"
        steps = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
        self.steps = v2.Compose(steps + ([v2.PILToTensor()] if self.by_pillow else []))

    def __call__(self, data):
        if self.by_pillow:
            return self.steps(Image.open(io.BytesIO(data)).convert("RGB"))
        return self.steps(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB))


def undecoded(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def end_to_end(samples):
    """A batch of files that are not decoded: one after the other, their lengths, and the labels."""
    files, labels = zip(*samples)
    return torch.cat(files), torch.tensor([len(file) for file in files]), torch.tensor(labels)


def one_thread(_):
    torch.set_num_threads(1)


class Labelled:
    def __init__(self, picture):
        self.picture = picture

    def __call__(self, data):
        return self.picture(data), 0


def client(args):
    import boto3

    return boto3.client("s3", endpoint_url=args.endpoint)


def webdataset(args, picture):
    import webdataset

    s3 = client(args)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="shards/")
    keys = [entry["Key"] for page in pages for entry in page["Contents"]]
    sign = lambda key: s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=36_000)
    samples = webdataset.WebDataset([sign(key) for key in keys], resampled=True, shardshuffle=False, empty_check=False)
    return samples.shuffle(1_000).to_tuple("jpg", "cls").map_tuple(picture, int)


def litdata(args, picture):
    import litdata.streaming.downloader
    from litdata.raw import StreamingRawDataset
    from litdata.raw.indexer import FileIndexer, FileMetadata

    class Listed(FileIndexer):
        """Lists by boto3, where its own way needs s3fs, too."""

        def discover_files(self, input_dir, storage_options):
            pages = client(args).get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="files/")
            entries = [entry for page in pages for entry in page["Contents"]]
            return [FileMetadata(path=f"s3://{BUCKET}/{entry['Key']}", size=entry["Size"]) for entry in entries]

    litdata.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server on the loopback has no certificate
    cache = os.path.join(args.cache, "litdata")
    return StreamingRawDataset(f"s3://{BUCKET}/files/", cache_dir=cache, indexer=Listed(), transform=Labelled(picture))


def measure(args, variant, workers, batch_size):
    device = torch.device(args.device)
    source, on_gpu = variant.removesuffix("_gpu"), variant.endswith("_gpu")
    dataset = {"webdataset": webdataset, "litdata": litdata}[source](args, undecoded if on_gpu else Picture(args.cpu))
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True if source == "litdata" else None,
        num_workers=workers,
        persistent_workers=True,
        prefetch_factor=AHEAD,
        pin_memory=device.type == "cuda",
        worker_init_fn=one_thread,
        collate_fn=end_to_end if on_gpu else None,
        drop_last=True,
    )
    mean = torch.tensor(MEAN, device=device).view(3, 1, 1) * 255
    scale = 1 / (torch.tensor(STD, device=device).view(3, 1, 1) * 255)

    def epochs():
        while True:
            yield from DecodedThere(loader, device) if on_gpu else loader

    # What the workers have loaded ahead by the end of the warm-up is no more than by the end of the window.
    begun, counted, window = time.perf_counter(), 0, None
    for pictures, labels in epochs():
        pictures, labels = pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        pictures.float().sub_(mean).mul_(scale)
        now = time.perf_counter()
        if window is not None:
            counted += len(pictures)
            if now - window >= args.seconds:
                break
        elif now - begun >= args.warm_up:
            window = now
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - window
    return {
        "workload": "shards",
        "peer": source,
        "variant": variant,
        "device": str(device),
        "cpu_decoder": None if on_gpu else args.cpu,
        "workers": workers,
        "batch_size": batch_size,
        "samples_s": round(counted / seconds, 1),
        "window_s": round(seconds, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", required=True, help="of the S3 server, whose bucket `bucket` has `files/` and `shards/`")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variant", default="webdataset,litdata")
    parser.add_argument("--cpu", choices=["pil", "torchvision"], default="torchvision", help="who decodes on the CPU")
    parser.add_argument("--workers", default=str(CORES))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--warm-up", type=float, default=10, help="seconds that are not measured")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--cache", default="/tmp/pinfeed-shards-peers", help="LitData's list of files")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "pinfeed")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "pinfeed-secret")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    os.environ.setdefault("AWS_ENDPOINT_URL", args.endpoint)
    os.environ.setdefault("AWS_ALLOW_HTTP", "true")
    for variant in args.variant.split(","):
        for workers in map(int, args.workers.split(",")):
            record = measure(args, variant, workers, args.batch_size)
            print(json.dumps(record) if args.json else record, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
