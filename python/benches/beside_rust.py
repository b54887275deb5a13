"""The loop in Python beside the same loop in Rust: the same files, workers, batches and work, on a GPU.

    cargo bench --bench feed --features turbojpeg,nvjpeg --no-run      # says where the program is
    python python/benches/beside_rust.py FOLDER --feed PROGRAM [--workers 4,16] [--turns 2] [--seconds 4]

`jpeg`: a folder of JPEG files, cropped to 224 (RandomResizedCrop), flipped, in batches of 256 that become normalized float32 on the GPU, decoded
by the workers (`cpu`) or by the GPU as well (`both`). `tensor`: rows of 150,528 bytes in memory, shuffled, in batches of 256. Nothing is computed with the batches. Turns
of both loops alternate, each with a loader of its own, and every other turn begins with Rust; a line has the mean of each, and their ratio. Batches of PyTorch's are copies on the GPU, those of the Rust loop are not.
"""

import argparse
import json
import subprocess
import time

import numpy as np
import torch

import pinfeed
from pinfeed import transforms as T

BATCH = 256


def in_python(data, options, seconds):
    """Samples a second, of epochs one after the other, behind two in which the loader warms up and, as in Rust, finds its share."""
    with pinfeed.DataLoader(data, **options) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        torch.cuda.synchronize()
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            for first, *_ in loader:
                count += len(first)
                if time.perf_counter() - begun >= seconds:
                    break
        torch.cuda.synchronize()
        return count / (time.perf_counter() - begun)


def in_rust(program, *arguments):
    """Samples a second, as the bench says."""
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, check=True)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])["samples_s"]


def compare(what, turns, python, rust):
    ours, rusts = [], []
    for turn in range(turns):
        loops = [(python, ours), (rust, rusts)]
        if turn % 2 == 1:
            loops.reverse()
        for run, found in loops:
            found.append(run())
    ratio = sum(ours) / sum(rusts)
    print(f"{what:24} Python {np.mean(ours):9.0f}   Rust {np.mean(rusts):9.0f} samples/s   {ratio:.3f}   ({', '.join(f'{a / b:.3f}' for a, b in zip(ours, rusts))})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--feed", required=True)
    parser.add_argument("--workers", default="4,16")
    parser.add_argument("--only", default="tensor,cpu,both", help="of these")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    asked = parser.parse_args()
    rows = pinfeed.TensorDataset(torch.randint(0, 255, (8192, 150_528), dtype=torch.uint8))
    for workers in map(int, asked.workers.split(",")):
        options = {"batch_size": BATCH, "shuffle": True, "seed": 17, "drop_last": True, "num_workers": workers, "device": "cuda:0"}
        common = ["--device", "cuda:0", "--workers", str(workers), "--batch-size", str(BATCH), "--seconds", str(asked.seconds)]
        wanted = asked.only.split(",")
        if "tensor" in wanted:
            rust = ("tensor", "--ahead", *common)
            compare(f"tensor, {workers} workers", asked.turns, lambda: in_python(rows, options, asked.seconds), lambda: in_rust(asked.feed, *rust))
        for decode in sorted({"cpu", "both"}.intersection(wanted)):
            data = pinfeed.ImageFolder(asked.folder, T.train(224), decode=decode)
            rust = ("jpeg", "--data", asked.folder, "--decode", decode, *common)
            compare(f"jpeg, {decode}, {workers} workers", asked.turns, lambda: in_python(data, options, asked.seconds), lambda: in_rust(asked.feed, *rust))


if __name__ == "__main__":
    main()
