"""What is run on a machine with a GPU, with the wheel installed: `python gpu_dlpack.py`. It asserts, and prints what it measured.

It needs torch with CUDA and NumPy; CuPy and JAX (with CUDA) where they are there, and it says which were not. Each check says its name; the last
line is "all is well". To have the driver's memory watched as well: `compute-sanitizer --tool memcheck python gpu_dlpack.py quick`.

A batch holds its own number, in all of its elements. Memory that is reused too early therefore shows the number of another batch.
"""

import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared with torch and CuPy here

import numpy as np
import torch

import pinfeed
from pinfeed import DataLoader

QUICK = "quick" in sys.argv[1:]
BATCHES, ROWS, ROW = 40, 8, 32_768
WORDS = ROWS * ROW
MISSING = [name for name in ("cupy", "jax") if importlib.util.find_spec(name) is None]
if "cupy" not in MISSING:
    import cupy
if "jax" not in MISSING:
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        MISSING.append("jax")
cu = ctypes.CDLL("libcuda.so.1")


FAILED = []


def check(function, *needs):
    """Runs it, and says what it said. One that fails is named at the end; the others run all the same."""
    if set(needs) & set(MISSING):
        print(f"{function.__name__}: left out, for {', '.join(needs)} is not there", flush=True)
        return
    begun = time.perf_counter()
    try:
        said = function()
        torch.cuda.synchronize()
    except Exception:
        traceback.print_exc()
        FAILED.append(function.__name__)
        said = "FAILED"
    gc.collect()
    print(f"{function.__name__}: {time.perf_counter() - begun:.2f} s{'' if said is None else f', {said}'}", flush=True)


def numbers():
    return pinfeed.TensorDataset(np.repeat(np.arange(BATCHES, dtype=np.int32), ROWS * ROW).reshape(BATCHES * ROWS, ROW))


def loader_of(output, **options):
    options = {"batch_size": ROWS, "num_workers": 4, "device": "cuda:0", "depth": 2, **options}
    return DataLoader(numbers(), output=output, **options)


def cycles(milliseconds):
    return int(1.7e6 * milliseconds)


def zero_copy_is_zero_copy():
    ((x,), *_) = loader_of("dlpack")
    assert isinstance(x, pinfeed.Tensor) and x.device == "cuda:0" and x.__dlpack_device__() == (2, 0)
    pointers = {torch.from_dlpack(x).data_ptr(), torch.from_dlpack(x).data_ptr()}
    if "cupy" not in MISSING:
        pointers.add(cupy.from_dlpack(x).data.ptr)
    if "jax" not in MISSING:
        pointers.add(jax.dlpack.from_dlpack(x).unsafe_buffer_pointer())
    assert len(pointers) == 1, pointers
    (torchs,) = next(iter(loader_of("torch")))  # by default, memory of its own
    assert torchs.is_cuda and torchs.data_ptr() not in pointers
    return f"all at {pointers.pop():#x}"


def types_and_values():
    for dtype in ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"):
        values = (np.arange(60).reshape(10, 3, 2) % 2).astype(dtype)
        values[3] = 0
        for (x,) in DataLoader(pinfeed.TensorDataset(values), batch_size=10, device="cuda:0", output="dlpack"):
            assert x.dtype == dtype and x.shape == (10, 3, 2)
            assert np.array_equal(x.numpy(), values), dtype
            assert np.array_equal(torch.from_dlpack(x).cpu().numpy(), values), dtype
            if "cupy" not in MISSING:
                there = cupy.from_dlpack(x)
                assert there.dtype == dtype and np.array_equal(cupy.asnumpy(there), values), dtype
            if "jax" not in MISSING and dtype not in ("int64", "uint64", "float64"):
                there = jax.dlpack.from_dlpack(x)
                assert there.dtype == dtype and np.array_equal(np.asarray(there), values), dtype
    values = torch.arange(20).reshape(10, 2).to(torch.bfloat16) / 7
    for (x,) in DataLoader(pinfeed.TensorDataset(values), batch_size=10, device="cuda:0", output="dlpack"):
        assert x.dtype == "bfloat16" and torch.equal(torch.from_dlpack(x).cpu(), values)
        if "jax" not in MISSING:
            assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(x).astype(jnp.float32)), values.float().numpy())


def pictures_and_empty_batches():
    (x, y), *_ = DataLoader(pinfeed.TensorDataset(np.zeros((4, 0, 5), np.float32), np.arange(4)), batch_size=4, device="cuda:0", output="dlpack")
    assert tuple(torch.from_dlpack(x).shape) == (4, 0, 5) and x.numpy().shape == (4, 0, 5) and y.numpy().tolist() == [0, 1, 2, 3]
    import tempfile

    from PIL import Image
    from pinfeed import transforms as T

    with tempfile.TemporaryDirectory() as root:
        for label in range(2):
            os.makedirs(f"{root}/{label}")
            for number in range(8):
                noise = np.random.default_rng(number).integers(0, 256, (70, 80, 3), dtype=np.uint8)
                Image.fromarray(noise).save(f"{root}/{label}/{number}.png")
        for dtype, tolerance in (("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)):
            data = pinfeed.ImageFolder(root, T.eval(64, dtype=dtype))
            for (host, _), (there, _) in zip(DataLoader(data, batch_size=8), DataLoader(data, batch_size=8, device="cuda:0", output="dlpack")):
                there = torch.from_dlpack(there)
                assert there.shape == host.shape and there.dtype == host.dtype
                assert (there.cpu().float() - host.float()).abs().max() <= tolerance


LATE_SUM = r"""
extern "C" __global__ void late_sum(const unsigned int* x, long long n, long long cycles, unsigned long long* sum) {
    long long begun = clock64();
    while (clock64() - begun < cycles) {}
    unsigned long long own = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) own += x[i];
    atomicAdd(sum, own);
}
"""


def three_streams_of_cupys_read_late():
    """The array is let go, also on another thread, while kernels are queued on three streams that do not wait for each other."""
    late_sum = cupy.RawKernel(LATE_SUM, "late_sum")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    epochs = 2 if QUICK else 8
    sums = cupy.zeros((epochs * BATCHES, 3), cupy.uint64)
    cupy.cuda.Device().synchronize()
    pointers, total = set(), 0
    loader = loader_of("dlpack")
    for epoch in range(epochs):
        for (tensor,) in loader:
            with streams[0]:
                x = cupy.from_dlpack(tensor)
                arrived = streams[0].record()
            del tensor
            pointers.add(x.data.ptr)
            for place, stream in enumerate(streams):
                stream.wait_event(arrived)
                with stream:
                    late_sum((1,), (256,), (x, np.int64(WORDS), np.int64(cycles(5)), sums[total, place]))
            if total % 2:
                thread = threading.Thread(target=lambda things: things.clear(), args=([x],))
                del x
                thread.start()
                thread.join()
            else:
                del x
            total += 1
    del loader
    gc.collect()
    for stream in streams:
        stream.synchronize()
    expected = np.tile(np.arange(BATCHES, dtype=np.uint64) * WORDS, epochs)[:, None].repeat(3, 1)
    wrong = int((cupy.asnumpy(sums) != expected).sum())
    assert wrong == 0, f"{wrong} sums of {expected.size} are wrong"
    assert len(pointers) < total, "no memory was used twice: the check has checked nothing"
    return f"{total} batches in {len(pointers)} blocks of memory, {expected.size} sums"


def jax_computes_late():
    @jax.jit
    def late(x, weight):
        for _ in range(30):
            weight = jnp.tanh(weight @ weight)
        return x.astype(jnp.uint32).sum() + (weight[0, 0] * 0).astype(jnp.uint32)

    weight = jnp.ones((2048, 2048), jnp.float32)
    sums, pointers = [], set()
    for _ in range(2 if QUICK else 6):
        for (x,) in loader_of("jax"):
            assert isinstance(x, jax.Array)
            pointers.add(x.unsafe_buffer_pointer())
            sums.append(late(x, weight))
            x.delete()  # at once, with the computation queued
            del x
    got = [int(x) for x in sums]
    assert got == [place % BATCHES * WORDS for place in range(len(got))], got
    assert len(pointers) < len(got), "no memory was used twice: the check has checked nothing"
    return f"{len(got)} batches in {len(pointers)} blocks of memory"


def hole_a_is_there_and_torch_may_ask_for_our_memory():
    """PyTorch lets go of foreign memory while its kernel is queued, on a stream that `record_stream` was told of."""
    # 1. The hole, with memory of somebody else's.
    address = ctypes.c_uint64()
    assert cu.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0

    class Foreign:
        __cuda_array_interface__ = {"data": (address.value, False), "shape": (1 << 20,), "typestr": "|u1", "version": 3}

    side = torch.cuda.Stream()
    gone = []
    owner = Foreign()
    weakref.finalize(owner, gone.append, 1)
    tensor = torch.as_tensor(owner, device="cuda")
    del owner
    tensor.sum().item()
    with torch.cuda.stream(side):
        torch.cuda._sleep(cycles(100))
        tensor.sum()
    tensor.record_stream(side)
    del tensor
    early = bool(gone) and not side.query()
    side.synchronize()
    cu.cuMemFree_v2(address)
    # 2. This library's answer: the same program, with our memory.
    sums, pointers = [], set()
    for _ in range(2 if QUICK else 6):
        for (tensor,) in loader_of("dlpack"):
            x = torch.from_dlpack(tensor)
            pointers.add(x.data_ptr())
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(cycles(3))
                sums.append(x.sum(dtype=torch.int64))
            x.record_stream(side)
            del x, tensor
    side.synchronize()
    assert [int(x) for x in sums] == [place % BATCHES * WORDS for place in range(len(sums))]
    assert len(pointers) < len(sums), "no memory was used twice: the check has checked nothing"
    return f"let go while a kernel was queued: {early}; with ours, {len(sums)} sums are right, in {len(pointers)} blocks of memory"


def hole_b_is_there_and_our_host_memory_has_none():
    """PyTorch copies foreign page-locked memory without waiting, and lets go of it at once."""
    count = 64 << 20
    side = torch.cuda.Stream()

    def copied(host, overwrite):
        """The bytes that arrive, where the host memory is let go of and written at once."""
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles(100))
            there = host.to("cuda", non_blocking=True)
        del host
        overwrite()
        side.synchronize()
        return there

    # 1. The hole.
    address = ctypes.c_void_p()
    assert cu.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(count), 0) == 0
    ctypes.memset(address, 1, count)
    host = [torch.frombuffer((ctypes.c_uint8 * count).from_address(address.value), dtype=torch.uint8)]
    assert host[0].is_pinned()
    there = copied(host.pop(), lambda: ctypes.memset(address, 2, count))
    wrong = int((there != 1).sum())
    cu.cuMemFreeHost(address)
    # 2. This library's answer: batches that the program has are in ordinary memory, whichever way they come, and a copy of them is over when the call returns.
    data = pinfeed.TensorDataset(np.repeat(np.arange(1, 9, dtype=np.uint8), count // 8).reshape(8, count // 8))
    ways = {"torch": lambda x: x, "numpy": torch.from_numpy, "dlpack": torch.from_dlpack}
    ours = 0
    for output, to_torch in ways.items():
        iterator = iter(DataLoader(data, batch_size=2, num_workers=2, output=output))
        for number in range(3):
            host = [to_torch(next(iterator)[0])]
            assert not host[0].is_pinned(), output
            there = copied(host.pop(), lambda: list(DataLoader(data, batch_size=8, output="numpy")))
            expected = torch.tensor([2 * number + 1, 2 * number + 2], dtype=torch.uint8, device="cuda")[:, None]
            ours += int((there != expected).sum())
    # And from the device back to the host: a copy, in ordinary memory.
    (tensor,) = next(iter(loader_of("dlpack")))
    assert not torch.from_numpy(tensor.numpy()).is_pinned()
    assert ours == 0, ours
    return f"bytes that are wrong: {wrong:,} of {count:,} there, {ours} of {9 * count // 4:,} here"


def tensors_outlive_the_loader():
    kept = []
    for epoch in range(3):
        with loader_of("dlpack") as loader:
            for place, (tensor,) in enumerate(loader):
                if place % 5 == epoch:
                    kept.append((place, tensor if place % 2 else torch.from_dlpack(tensor)))
                if epoch == 2 and place == 33:
                    break  # in mid-epoch
    del loader, tensor
    gc.collect()
    for _ in loader_of("dlpack"):
        pass
    for place, thing in kept:
        there = thing if isinstance(thing, torch.Tensor) else torch.from_dlpack(thing)
        assert torch.equal(there, torch.full_like(there, place)), place
    return f"{len(kept)} tensors"


def what_the_standard_says():
    (x,) = next(iter(loader_of("dlpack")))
    for options in ({"stream": 0}, {"stream": -2}, {"dl_device": (2, 7)}, {"dl_device": (1, 0), "copy": False}):
        try:
            x.__dlpack__(**options)
        except BufferError as error:
            assert "pinfeed" in str(error) or "this tensor" in str(error), error
        else:
            raise AssertionError(options)
    side = torch.cuda.Stream()
    for stream in (None, 1, 2, -1, side.cuda_stream):
        for version in (None, (1, 0), (1, 3)):
            capsule = x.__dlpack__(stream=stream, max_version=version)
            assert ("dltensor_versioned" in repr(capsule)) == (version is not None)
            again = torch.from_dlpack(capsule)
            assert "used_dltensor" in repr(capsule) and again.is_cuda
            x.__dlpack__(stream=stream, max_version=version)  # never consumed
    on_host = np.from_dlpack(x, device="cpu") if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else x.numpy()
    assert (on_host == 0).all() and (x.numpy() == 0).all()
    copy = torch.from_dlpack(x.__dlpack__(copy=True, max_version=(1, 0)))
    shared = torch.from_dlpack(x)
    assert copy.data_ptr() != shared.data_ptr() and torch.equal(copy, shared)
    shared[:] = 5  # it may be written, and others see that
    torch.cuda.synchronize()
    assert (x.numpy() == 5).all() and not copy.any()
    try:
        np.asarray(x)
    except TypeError as error:
        assert "numpy()" in str(error)
    else:
        raise AssertionError("a tensor on a GPU became a NumPy array silently")
    graph = torch.cuda.CUDAGraph()
    refused = []
    ones = torch.ones(8, device="cuda")
    with loader_of("dlpack").capturing():
        with torch.cuda.graph(graph):
            doubled = ones * 2
            try:
                x.__dlpack__(stream=torch.cuda.current_stream().cuda_stream)
            except BufferError as error:
                refused.append(str(error))
    assert refused and "captured" in refused[0], refused
    graph.replay()
    assert doubled.sum().item() == 16  # the capture survived


def captures_beside_a_loader():
    """A thread takes batches, and with each of them sweeps, while this one captures graphs, under a guard."""
    loader, stop, taken, failed = loader_of("dlpack"), threading.Event(), [0], []

    def take():
        try:
            while not stop.is_set():
                for (x,) in loader:
                    taken[0] += 1
                    del x
                    if stop.is_set():
                        return
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    x = torch.ones(1000, device="cuda")
    for _ in range(10 if QUICK else 50):
        graph = torch.cuda.CUDAGraph()
        with loader.capturing():
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = x
                for _ in range(20):
                    y = y * 1.01
        graph.replay()
    torch.cuda.synchronize()
    stop.set()
    thread.join()
    assert not failed, failed
    return f"{taken[0]} batches meanwhile"


def sweeps_by_hand():
    loader = loader_of("dlpack", sweep=False)
    iterator = iter(loader)
    first, second = next(iterator), next(iterator)
    before = loader.sweep()
    del first, second
    gc.collect()
    swept = loader.sweep()
    assert swept >= 2 * WORDS * 4 and loader.sweep() == 0, (before, swept)
    with loader.capturing():
        next(iterator)
        gc.collect()
        assert loader.sweep() == 0  # it waits for the guard
    assert loader.sweep() >= WORDS * 4


EXITS = """
import os, sys, threading
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import numpy as np, torch, pinfeed
data = pinfeed.TensorDataset(np.zeros((400, 20000), np.float32))
loader = pinfeed.DataLoader(data, batch_size=8, num_workers=4, device="cuda:0", output="dlpack")
iterator = iter(loader)
kept = [next(iterator)[0] for _ in range(9)]
capsules = [x.__dlpack__(max_version=(1, 0)) for x in kept]
sys.modules["kept"] = [torch.from_dlpack(x) for x in kept]
if "jax" in sys.argv:
    import jax
    arrays = [jax.dlpack.from_dlpack(x) for x in kept]
if "cupy" in sys.argv:
    import cupy
    others = [cupy.from_dlpack(x) for x in kept]
if "thread" in sys.argv:
    threading.Thread(target=lambda: [x for x in iterator], daemon=True).start()
print("end")
"""


def the_interpreter_ends_with_tensors_alive():
    libraries = [name for name in ("jax", "cupy") if name not in MISSING]
    for arguments in ([], ["thread"], *([name] for name in libraries)):
        done = subprocess.run([sys.executable, "-c", EXITS, *arguments], capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout) == (0, "end\n"), (arguments, done.returncode, done.stderr)


COMMAND_BUFFERS = """
import os, threading
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import numpy as np, jax, jax.numpy as jnp, pinfeed
data = pinfeed.TensorDataset(np.zeros((4000, 2000), np.float32))
loader = pinfeed.DataLoader(data, batch_size=8, num_workers=4, device="cuda:0", output="jax")
failed, stop = [], threading.Event()
def compute():
    try:
        for size in range(64, 64 + 40):
            if stop.is_set():
                break
            f = jax.jit(lambda a: [a := jnp.tanh(a @ a) for _ in range(8)][-1])
            f(jnp.ones((size, size))).block_until_ready()
    except Exception as error:
        failed.append(error)
thread = threading.Thread(target=compute)
thread.start()
try:
    while thread.is_alive():
        for x, in loader:
            del x
except Exception as error:
    failed.append(error)
stop.set()
thread.join()
print(f"{len(failed)} errors", *(str(error)[:300] for error in failed), sep=" | ")
"""


def jax_captures_graphs_of_its_own():
    """XLA captures parts of its command buffers, which a sweep may break. This asserts nothing: docs/python.md says what to do, by what is seen here."""
    said = []
    for name, flags in (("as it is", ""), ("without command buffers", "--xla_gpu_enable_command_buffer=")):
        environment = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
        done = subprocess.run([sys.executable, "-c", COMMAND_BUFFERS], capture_output=True, text=True, timeout=600, env=environment)
        said.append(f"{name}: status {done.returncode}, {done.stdout.strip() or done.stderr.strip()[-300:]}")
    return "; ".join(said)


def leaks():
    loader = loader_of("dlpack")

    def taken():
        gc.collect()
        torch.cuda.synchronize()
        loader.sweep()
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), torch.cuda.mem_get_info()[0]

    def epochs(count):
        for _ in range(count):
            for (x,) in loader:
                torch.from_dlpack(x)
                x.__dlpack__()
            next(iter(loader))

    epochs(5)
    before = taken()
    epochs(10 if QUICK else 100)
    after = taken()
    assert after[1] <= before[1] and after[0] - before[0] < 30_000 and before[2] - after[2] < 64 << 20, (before, after)
    return f"RSS {before[0]} to {after[0]} KiB, {after[1]} threads"


def what_a_hand_over_costs():
    """The host's time for a batch of 256 pictures, 38.5 MB in bytes, that is on the device already."""
    data = pinfeed.TensorDataset(np.zeros((1024, 224, 224, 3), np.uint8), np.zeros(1024, np.int64))
    said = []
    for output in ("torch", "dlpack", *(name for name in ("cupy", "jax") if name not in MISSING)):
        loader = DataLoader(data, batch_size=256, num_workers=8, device="cuda:0", depth=3, output=output)
        times = []
        for _ in range(4):
            iterator = iter(loader)
            for _ in range(len(loader)):
                time.sleep(0.05)  # the step, in which the next batches arrive
                torch.cuda.synchronize()
                begun = time.perf_counter()
                batch = next(iterator)
                times.append(time.perf_counter() - begun)
                del batch
        times.sort()
        said.append(f"{output}: median {1e6 * times[len(times) // 2]:.0f} us")
    return "; ".join(said)


def main():
    versions = [f"pinfeed {pinfeed.__version__}", f"Python {sys.version.split()[0]}", f"torch {torch.__version__}", f"NumPy {np.__version__}"]
    versions += [f"CuPy {cupy.__version__}"] if "cupy" not in MISSING else []
    versions += [f"JAX {jax.__version__}"] if "jax" not in MISSING else []
    print(*versions, torch.cuda.get_device_name(), sep=", ")
    torch.zeros(1, device="cuda").sum().item()
    for function, *needs in (
        (zero_copy_is_zero_copy,),
        (types_and_values,),
        (pictures_and_empty_batches,),
        (what_the_standard_says,),
        (three_streams_of_cupys_read_late, "cupy"),
        (jax_computes_late, "jax"),
        (hole_a_is_there_and_torch_may_ask_for_our_memory,),
        (hole_b_is_there_and_our_host_memory_has_none,),
        (tensors_outlive_the_loader,),
        (captures_beside_a_loader,),
        (sweeps_by_hand,),
        (leaks,),
        (what_a_hand_over_costs,),
        (the_interpreter_ends_with_tensors_alive,),
        (jax_captures_graphs_of_its_own, "jax"),
    ):
        if QUICK and function in (leaks, what_a_hand_over_costs, the_interpreter_ends_with_tensors_alive, jax_captures_graphs_of_its_own):
            continue
        check(function, *needs)
    if FAILED:
        sys.exit(f"failed: {', '.join(FAILED)}")
    print("all is well" + (f", without {' and '.join(MISSING)}" if MISSING else ""))


if __name__ == "__main__":
    main()
