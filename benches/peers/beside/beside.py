#!/usr/bin/env python3
"""What does a ResNet-50 lose that trains on pinfeed's batches? PyTorch trains in the same process, on the memory that pinfeed lends.

    python3 ../photos.py photos 8000
    cargo build --release
    CUDA_DEVICE_MAX_CONNECTIONS=32 python3 beside.py target/release/libbeside.so photos 4,both 8,both 2,device 16,cpu

It trains on a stream that pinfeed makes, as a program in Rust would. With `--torch-stream` in front, it is one of PyTorch's, which makes 32 of
them at once, and those share the device's connections with the loader's.

It needs a CUDA GPU, nvJPEG, PyTorch and torchvision; and cmake and nasm to build, for libjpeg-turbo.

Each argument behind the folder is a run: workers, who decodes, and perhaps the device's share. After 60 steps that are not measured
come 60 that are, and behind each 30 of them 30 of the step alone, on the last batch. Prints a line for each run: the loop as a multiple
of the step alone, the step in ms, the share of the loop that waited, the cores of the process, and the device's share of 64 pictures.
"""

import ctypes
import sys
import time

import torch
import torchvision


class Lent(ctypes.Structure):
    _fields_ = [("images", ctypes.c_uint64), ("labels", ctypes.c_uint64), ("rows", ctypes.c_uint64)]


class Counted(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batches", "waiting_ns", "device_decoded", "device_share")]


class Memory:
    def __init__(self, address, shape, kind):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": kind, "version": 3}


def library(path):
    lib = ctypes.CDLL(path)
    lib.pf_stream.restype, lib.pf_stream.argtypes = ctypes.c_void_p, []
    lib.pf_open.restype = ctypes.c_void_p
    lib.pf_open.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_double, ctypes.c_void_p]
    lib.pf_next.restype, lib.pf_next.argtypes = Lent, [ctypes.c_void_p]
    lib.pf_stats.restype, lib.pf_stats.argtypes = Counted, [ctypes.c_void_p]
    lib.pf_close.restype, lib.pf_close.argtypes = None, [ctypes.c_void_p]
    return lib


def main(*arguments):
    torch_stream = arguments[0] == "--torch-stream"
    path, folder, *runs = arguments[1:] if torch_stream else arguments
    lib = library(path)
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if torch_stream:
        stream = torch.cuda.Stream()
    else:
        torch.cuda.init()  # the primary context
        handle = lib.pf_stream()
        if not handle:
            return 1
        stream = torch.cuda.ExternalStream(handle)
    torch.cuda.set_stream(stream)

    def step(images, labels):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        sgd.zero_grad(set_to_none=True)
        loss.backward()
        sgd.step()

    for run in runs:
        workers, decode, *share = run.split(",")
        share = float(share[0]) if share else -1.0
        decode = ["cpu", "device", "both"].index(decode)
        handle = lib.pf_open(folder.encode(), int(workers), decode, share, stream.cuda_stream)
        if not handle:
            return 1

        def steps(count):
            for _ in range(count):
                lent = lib.pf_next(handle)
                if not lent.rows:
                    sys.exit(1)
                images = torch.as_tensor(Memory(lent.images, (lent.rows, 224, 224, 3), "<f4"), device="cuda")
                labels = torch.as_tensor(Memory(lent.labels, (lent.rows,), "<i8"), device="cuda")
                images = images.permute(0, 3, 1, 2)
                step(images, labels)
            return images, labels

        def timed(work):
            torch.cuda.synchronize()
            cpu, begin = time.process_time(), time.perf_counter()
            work()
            torch.cuda.synchronize()
            return time.perf_counter() - begin, time.process_time() - cpu

        steps(60)
        loop = alone = busy = 0.0
        waited = 0
        for _ in range(2):
            before = lib.pf_stats(handle).waiting_ns
            last = []
            seconds, cpu = timed(lambda: last.append([one.clone() for one in steps(30)]))
            waited += lib.pf_stats(handle).waiting_ns - before
            loop, busy = loop + seconds, busy + cpu
            time.sleep(0.3)  # what is loaded ahead is there
            alone += timed(lambda: [step(*last[0]) for _ in range(30)])[0]
        share = lib.pf_stats(handle).device_share
        print(
            f"{run}: {loop / alone:.4f} of the step alone ({alone / 60 * 1e3:.2f} ms), waiting {waited / loop / 1e7:.2f} %, "
            f"{busy / loop:.1f} cores, share {share}/64",
            flush=True,
        )
        torch.cuda.synchronize()
        lib.pf_close(handle)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
