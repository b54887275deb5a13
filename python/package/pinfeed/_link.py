"""What the link to each GPU carries, by bare calls of NVIDIA's driver: page-locked memory and ordinary memory, both ways."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from pathlib import Path
from typing import Any, Callable

_BYTES = 64 << 20
_TIMES = 5
# CUdevice_attribute
_MEMORY_CLOCK_RATE, _GLOBAL_MEMORY_BUS_WIDTH = 36, 37
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}


class DriverError(Exception):
    """A call of the driver failed."""


class _Driver:
    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"NVIDIA's driver cannot be loaded: {error}") from error
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise DriverError(f"CUDA's driver has no {name}: it is too old") from error
        code = function(*arguments)
        if code != 0:
            raise DriverError(f"{name} failed: error {code} of CUDA's driver")


def pcie(address: str, which: str = "current", root: Path = Path("/")) -> tuple[int, int, float] | None:
    """Generation, lanes, and the GB/s each way of a device's link, as Linux says; ``None`` where it does not."""
    domain, _, rest = address.lower().partition(":")
    folder = root / "sys/bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
    try:
        rate = float((folder / f"{which}_link_speed").read_text().split()[0])  # "32.0 GT/s PCIe", or "Unknown"
        lanes = int((folder / f"{which}_link_width").read_text())
    except (OSError, ValueError, IndexError):
        return None
    generation = _GENERATIONS.get(rate)
    if generation is None or lanes <= 0:
        return None
    # Up to 5 GT/s, 10 bits on the line carry 8; up to 32 GT/s, 130 carry 128; from there on, 256 bytes carry 236.
    encoded = 0.8 if generation <= 2 else 128 / 130 if generation <= 5 else 236 / 256
    return generation, lanes, rate * lanes / 8 * encoded


def _gigabytes_a_second(copy: Callable[[], None]) -> float:
    copy()
    took = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        copy()
        took.append(time.perf_counter() - begun)
    return _BYTES / statistics.median(took) / 1e9


def measured(ordinal: int) -> dict[str, Any]:
    """Of a GPU: its name, its link, GB/s of copies of 64 MiB by memory and direction, and ms that page-locking takes a GiB.

    Blocks until all copies are done. It uses the context that torch and this package have, and 64 MiB of the GPU and 128 of the host.
    """
    driver = _Driver()
    device, context, there, locked = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    driver.call("cuDeviceGet", ctypes.byref(device), ordinal)
    name, address = ctypes.create_string_buffer(100), ctypes.create_string_buffer(32)
    driver.call("cuDeviceGetName", name, len(name), device)
    driver.call("cuDeviceGetPCIBusId", address, len(address), device)
    found: dict[str, Any] = {"name": name.value.decode(), "address": address.value.decode()}
    clock_khz, bits = ctypes.c_int(), ctypes.c_int()
    driver.call("cuDeviceGetAttribute", ctypes.byref(clock_khz), _MEMORY_CLOCK_RATE, device)
    driver.call("cuDeviceGetAttribute", ctypes.byref(bits), _GLOBAL_MEMORY_BUS_WIDTH, device)
    found["own_memory"] = 2 * clock_khz.value * 1e3 * bits.value / 8 / 1e9  # two bits a clock and line
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        driver.call("cuCtxPushCurrent_v2", context)
        try:
            driver.call("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(_BYTES))
            begun = time.perf_counter()
            driver.call("cuMemHostAlloc", ctypes.byref(locked), ctypes.c_size_t(_BYTES), 0)
            found["locking_ms_per_gib"] = 1e3 * (time.perf_counter() - begun) * 2**30 / _BYTES
            ordinary = ctypes.create_string_buffer(_BYTES)
            ctypes.memset(locked, 1, _BYTES)
            ctypes.memset(ordinary, 1, _BYTES)
            links, done = [], threading.Event()

            def watch() -> None:  # an idle link is slower
                while not done.wait(0.002):
                    links.append(pcie(found["address"]))

            watching = threading.Thread(target=watch)
            watching.start()
            try:
                size = ctypes.c_size_t(_BYTES)
                for memory, host in (("locked", locked), ("ordinary", ctypes.cast(ordinary, ctypes.c_void_p))):
                    # (These return when the copy is done.)
                    found[f"{memory}_to"] = _gigabytes_a_second(lambda: driver.call("cuMemcpyHtoD_v2", there, host, size))
                    found[f"{memory}_back"] = _gigabytes_a_second(lambda: driver.call("cuMemcpyDtoH_v2", host, there, size))
            finally:
                done.set()
                watching.join()
            found["link"] = max((link for link in links if link is not None), key=lambda link: link[2], default=None)
            found["possible"] = pcie(found["address"], "max")
        finally:
            if locked:
                driver.call("cuMemFreeHost", locked)
            if there:
                driver.call("cuMemFree_v2", there)
            driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.call("cuDevicePrimaryCtxRelease_v2", device)
    return found


def lines(ordinal: int, found: dict[str, Any]) -> list[str]:
    """What was measured, in plain words."""

    def of(link: tuple[int, int, float]) -> str:
        return f"PCIe {link[0]} x{link[1]}"

    said = [
        f"Copies to GPU {ordinal}, of 64 MiB: {found['locked_to']:.1f} GB/s from page-locked memory, {found['ordinary_to']:.1f} from ordinary memory; "
        f"back {found['locked_back']:.1f} and {found['ordinary_back']:.1f}."
    ]
    link, possible = found["link"], found["possible"]
    if link is None:
        said.append("  Its link: the system does not say (a virtual machine, or a container without /sys).")
    else:
        share = 100 * found["locked_to"] / link[2]
        said.append(f"  Its link: {of(link)}, which allows {link[2]:.1f} GB/s each way; {share:.0f} % of that was reached.")
        if possible is not None and possible[2] > 1.01 * link[2]:
            said.append(f"  The GPU could do {of(possible)}, {possible[2]:.1f} GB/s: look at the slot, a riser, or the machine's settings.")
    if found["own_memory"] > 0:
        said.append(
            f"  The {found['own_memory']:.0f} GB/s of its data sheet are between its cores and its own memory. A batch comes over the link, and from ordinary memory "
            "one thread of the CPU copies it first."
        )
    said.append(f"  Page-locking takes {found['locking_ms_per_gib']:.0f} ms a GiB: for one copy it never pays. This loader locks memory once, and uses it again.")
    return said
