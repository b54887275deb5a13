"""What this machine can do, in plain words: ``python -m pinfeed.doctor``.

It measures links to GPUs, copies, page-locking, memory and decoding, and says which settings follow. With a folder of pictures it reads
these, too, and says how fast that is, and what limits it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from . import DataLoader, Error, ImageFolder, World, _pinfeed, transforms


def _software() -> list[str]:
    """What is installed, and what it sees."""
    lines = [f"pinfeed {_pinfeed.__version__}, Python {platform.python_version()}, {platform.system()} on {platform.machine()}"]
    facts: dict[str, Any] = _pinfeed.machine()
    features = ", ".join(facts["features"]) or "none"
    lines.append(f"Built with: {features}.")
    if "turbojpeg" in facts["features"]:
        lines.append("JPEG files are decoded by libjpeg-turbo, and only the part that a crop needs.")
    else:
        lines.append("JPEG files are decoded by a decoder in Rust; libjpeg-turbo is about twice as fast: install a wheel with turbojpeg.")
    devices: list[str] = facts["devices"]
    if devices:
        lines.append(f'GPU: DataLoader(device="{devices[0]}") gives batches there. There is {", ".join(devices)}.')
    if facts["why_no_device"] is not None:
        lines.append(f"GPU: {'another' if devices else 'none'} can be used: {facts['why_no_device']}." + ("" if devices else " Batches stay on the CPU."))
    for package in ("torch", "numpy"):
        if importlib.util.find_spec(package) is None:
            lines.append(f"{package}: not installed.")
            continue
        module = __import__(package)
        lines.append(f"{package}: {module.__version__}.")
        if package == "torch" and devices and not module.cuda.is_available():
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
    return lines


def _pictures(folder: str) -> list[str]:
    """How fast a folder is read."""
    data = ImageFolder(folder, transforms.train(224))
    with DataLoader(data, batch_size=min(64, len(data)), shuffle=True, num_workers="auto") as loader:
        end = time.monotonic() + 5  # a small folder, again and again
        while time.monotonic() < end:
            for _ in loader:
                if time.monotonic() >= end:
                    break
        return [f"{folder}: {len(data)} pictures of {len(data.classes)} classes.", *str(loader.total_stats()).splitlines()]


def report(folder: str | None = None, *, quick: bool = False) -> list[str]:
    """The lines that ``python -m pinfeed.doctor`` prints. Measuring takes a minute; if ``quick``, some seconds, and figures are rougher. It wants a
    machine that does nothing else meanwhile.

    Raises ``pinfeed.Error`` if the folder cannot be read."""
    pictures = [] if folder is None else ["", *_pictures(folder)]
    return [*_software(), "", *_pinfeed._Probe(quick).text().splitlines(), *pictures]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pinfeed.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="pictures, in a folder for each class")
    parser.add_argument("--quick", action="store_true", help="some seconds instead of a minute: fewer and shorter measurements")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--html", metavar="FILE", type=Path, help="writes a page with plots, too")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing to tidy up
    try:
        if options.html is not None:
            options.html.write_text("")  # now, rather than after the measurements
        software = _software()
        pictures = [] if options.folder is None else _pictures(options.folder)
        probe = _pinfeed._Probe(options.quick)
        if options.html is not None:
            options.html.write_text(probe.html(), encoding="utf-8")
        if options.json:
            print(json.dumps({"software": software, "pictures": pictures, **json.loads(probe.json())}, indent=2))
        else:
            print("\n".join([*software, "", probe.text(), *pictures]))
    except (Error, OSError, RuntimeError) as error:
        print(f"pinfeed.doctor: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
