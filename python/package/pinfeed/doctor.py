"""What this machine can do, in plain words: ``python -m pinfeed.doctor``, or with a folder of pictures, ``python -m pinfeed.doctor FOLDER``,
how fast they are read."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

from . import DataLoader, Error, ImageFolder, World, _link, _pinfeed, transforms


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _limits() -> list[str]:
    """Limits of the process and its container."""
    lines = []
    try:
        import resource

        locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if locked != resource.RLIM_INFINITY:
            lines.append(f"Memory that mlock may lock (ulimit -l): {locked / 2**20:.0f} MiB. CUDA's driver page-locks by calls to its devices, which this does not limit.")
    except (ImportError, OSError):
        pass
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            lines.append(f"The container may use {int(quota) / int(period):.1f} cores' time: more workers than that wait for each other.")
    except (OSError, ValueError):
        pass
    nodes = [node.name for node in Path("/sys/devices/system/node").glob("node[0-9]*")]
    if len(nodes) > 1:
        lines.append(f"NUMA nodes: {len(nodes)}. Keep a rank on its GPU's: numactl --cpunodebind=N --membind=N.")
    return lines


def report(folder: str | None = None) -> list[str]:
    """The lines that ``main`` prints."""
    lines = [f"pinfeed {_pinfeed.__version__}, Python {platform.python_version()}, {platform.system()} on {platform.machine()}"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    lines.append(f"Cores: {cores} may be used by this process. num_workers=\"auto\" finds out how many are of use; more than {cores} rarely help.")
    facts: dict[str, Any] = _pinfeed.machine()
    lines.append(f"Memory: {_gigabytes(facts['memory_bytes'])} may be used by this process.")
    lines.extend(_limits())
    features = ", ".join(facts["features"]) or "none"
    lines.append(f"Built with: {features}.")
    if "turbojpeg" in facts["features"]:
        lines.append("JPEG files are decoded by libjpeg-turbo, and only the part that a crop needs.")
    else:
        lines.append("JPEG files are decoded by a decoder in Rust; libjpeg-turbo is about twice as fast: install a wheel with turbojpeg.")
    if facts["devices"]:
        for ordinal, name in enumerate(facts["devices"]):
            lines.append(f"GPU: {name}. DataLoader(device=\"cuda:{ordinal}\") gives batches there.")
            try:
                lines.extend(_link.lines(ordinal, _link.measured(ordinal)))
            except _link.DriverError as error:
                lines.append(f"  Its link was not measured: {error}")
    else:
        lines.append(f"GPU: none that can be used: {facts['why_no_device']}. Batches stay on the CPU.")
    for package in ("torch", "numpy"):
        if importlib.util.find_spec(package) is None:
            lines.append(f"{package}: not installed.")
            continue
        module = __import__(package)
        lines.append(f"{package}: {module.__version__}.")
        if package == "torch" and facts["devices"] and not module.cuda.is_available():
            lines.append("torch finds no GPU, though the driver has one: this torch is built for the CPU, or for a newer driver.")
    if importlib.util.find_spec("torch") is None and importlib.util.find_spec("numpy") is None:
        lines.append("Install torch or numpy: batches are tensors or arrays of theirs.")
    try:
        world = World.from_env()
        lines.append(
            "Ranks: this process is alone." if world.size == 1 else f"Ranks: this is rank {world.rank} of {world.size}; world=\"env\" gives it its share."
        )
    except Error as error:
        lines.append(f"Ranks: the launcher's variables make no sense: {error}")
    if folder is not None:
        lines.extend(_measured(folder))
    return lines


def _measured(folder: str) -> list[str]:
    data = ImageFolder(folder, transforms.train(224))
    with DataLoader(data, batch_size=min(64, len(data)), shuffle=True, num_workers="auto") as loader:
        for step, _ in enumerate(loader):
            if step == 50:
                break
        return [f"{folder}: {len(data)} pictures of {len(data.classes)} classes.", str(loader.stats())]


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print("usage: python -m pinfeed.doctor [FOLDER]\n\n" + (__doc__ or ""))
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        print("\n".join(report(*arguments)))
    except Error as error:
        print(f"pinfeed.doctor: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
