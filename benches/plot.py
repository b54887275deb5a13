#!/usr/bin/env python3
"""Draws what the benches measured: JSON lines in, SVG files out. Standard library only.

    python3 benches/plot.py results/*.jsonl --out docs/plots --caption "H200, PCIe 5 x16, 16 cores, 2026-11-20"

- tensor-workers.svg  throughput to the device against the number of workers, beside the limit
- tensor-batch.svg    throughput to the device against the batch size, beside the limit
- tiny.svg            batches of scalars a second, on a log scale

Where results repeat, their median is drawn; of several depths of prefetching the one that serves best. A plot without
results is left out.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from html import escape
from pathlib import Path
from statistics import median

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#e4e7eb", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDTH, LEFT, TOP, BOTTOM = 880, 66, 74, 78

# What variants are called in a plot; others by their own name.
VARIANTS = {
    "loop": "",
    "ahead": "sent ahead",
    "registered": "registered",
    "workers": "",
    "no_workers": "",
    "batched": "whole batches",
    "gathered": "gathered by hand",
    "sliced": "an epoch's order at once",
    "floats": "from floats",
    "get_batch": "get_batch",
    "get": "get",
}
# Ours in cold colours, peers in warm and grey ones; the same thing has one colour in all plots.
COLOURS = {
    "pinfeed": {"": "#0b57d0", "f32": "#00838f", "registered": "#7b1fa2", "ahead": "#0a8043"},
    "pytorch": {
        "": "#c2410c",
        "f32": "#8a5a00",
        "batched": "#a3195b",
        "batched f32": "#7d4e57",
        "gathered": "#d2691e",
        "registered": "#b8860b",
    },
    "dataloader-rs": {"": "#57606a"},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSON lines, as the benches print them")
    parser.add_argument("--out", type=Path, default=Path(), help="where the SVG files go")
    parser.add_argument("--caption", default="", help="the machine and the date")
    parser.add_argument("--device", help="which device's results (default: the one with the most, not the CPU)")
    args = parser.parse_args()

    results = read(args.files)
    args.out.mkdir(parents=True, exist_ok=True)
    tensor = on_one_device([result for result in results if result["workload"] == "tensor"], args.device)
    tiny = [result for result in results if result["workload"] == "tiny" and result.get("batches_s")]
    plots = {
        "tensor-workers.svg": against_workers(tensor, args.caption),
        "tensor-batch.svg": against_batch_size(tensor, args.caption),
        "tiny.svg": batches_per_second(tiny, args.caption),
    }
    for name, svg in plots.items():
        if svg is None:
            print(f"{name}: no results", file=sys.stderr)
        else:
            (args.out / name).write_text(svg)
            print(args.out / name)


def read(files):
    results = []
    for file in files:
        for line in file.read_text().splitlines():
            if line.startswith("{"):  # what else programs print is passed over
                result = json.loads(line)
                if "workload" in result:
                    results.append(result)
    return results


def on_one_device(results, device):
    results = [result for result in results if result.get("gb_s") is not None]
    if device is None:
        names = Counter(result["device"] for result in results)
        device = max(names, key=lambda name: (name != "cpu", names[name]), default=None)
    return [result for result in results if result["device"] == device]


def most_common(results, key):
    return Counter(result[key] for result in results).most_common(1)[0][0]


def name_of(result, with_dtype=True):
    who = (result.get("peer") or "pinfeed").replace("pytorch", "PyTorch")
    variant = result.get("variant") or ""
    parts = [who, VARIANTS.get(variant, variant.replace("_", " "))]
    if with_dtype and result.get("dtype"):
        parts.append(result["dtype"])
    return ", ".join(part for part in parts if part)


def colour_of(result):
    colours = COLOURS.get((result.get("peer") or "pinfeed").split()[0], {"": INK})
    variant, dtype = result.get("variant"), result.get("dtype")
    for key in (f"{variant} {dtype}", variant, dtype):
        if key in colours:
            return colours[key]
    return colours[""]


class Line:
    """One way to load, and what it reached at each tick."""

    def __init__(self, name, result):
        self.name, self.colour, self.peer = name, colour_of(result), bool(result.get("peer"))
        self.found = defaultdict(lambda: defaultdict(list))

    def points(self):
        return sorted((at, max(map(median, depths.values()))) for at, depths in self.found.items())

    def last(self):
        return self.points()[-1][1]


def lines_of(results, x, with_dtype):
    """The fastest first."""
    lines = {}
    for result in results:
        name = name_of(result, with_dtype)
        lines.setdefault(name, Line(name, result)).found[result[x]][result.get("prefetch")].append(result["gb_s"])
    return sorted(lines.values(), key=lambda line: -line.last())


def against_workers(results, caption):
    if not results:
        return None
    batch_size = 256 if any(result["batch_size"] == 256 for result in results) else most_common(results, "batch_size")
    results = [result for result in results if result["batch_size"] == batch_size]
    limits = [result["limit_gb_s"] for result in results if result.get("limit_gb_s")]
    lines = lines_of(results, "workers", True)
    ticks = sorted({result["workers"] for result in results})
    limit = [(at, median(limits)) for at in ticks] if limits else None
    title = f"In-memory images to the device, shuffled, batches of {batch_size}"
    return chart(title, "workers", lines, ticks, limit, caption)


def against_batch_size(results, caption):
    """For the element type and the number of workers that were measured with the most batch sizes."""
    sizes = defaultdict(set)
    for result in results:
        if not result.get("peer"):
            sizes[result["dtype"], result["workers"]].add(result["batch_size"])
    (dtype, workers), seen = max(sizes.items(), key=lambda item: len(item[1]), default=((None, None), ()))
    if len(seen) < 2:
        return None
    # A peer's way without workers, where it is another than its way with them, is held against ours with workers.
    results = [
        result
        for result in results
        if result["dtype"] == dtype
        and (result["workers"] == workers or result.get("peer") and result["variant"] == "batched")
    ]
    limits = defaultdict(list)
    for result in results:
        if result.get("limit_gb_s"):
            limits[result["batch_size"]].append(result["limit_gb_s"])
    limit = sorted((size, median(values)) for size, values in limits.items())
    lines = [line for line in lines_of(results, "batch_size", False) if len(line.found) > 1]
    ticks = sorted({at for line in lines for at in line.found})
    limit = [(at, value) for at, value in limit if at in ticks]
    title = f"In-memory images to the device, shuffled, {dtype}, {workers} workers"
    return chart(title, "samples in a batch", lines, ticks, limit, caption)


def chart(title, x_label, lines, ticks, limit, caption):
    """Lines over evenly spaced ticks, each with its name and its last value at its end."""
    height = 470
    labels = [f"{line.name}  {number(line.last())}" for line in lines]
    right = WIDTH - 52 - max(text_width(label, bold=True) for label in labels)
    bottom = height - BOTTOM
    values = [value for line in lines for _, value in line.points()] + [value for _, value in limit or []]
    step = nice_step(max(values) * 1.08 / 5)
    ceiling = math.ceil(max(values) * 1.08 / step) * step

    def x(at):
        return LEFT + 22 + (right - LEFT - 34) * ticks.index(at) / max(1, len(ticks) - 1)

    def y(value):
        return bottom - (bottom - TOP) * value / ceiling

    out = [text(LEFT - 40, 30, title, 17, weight=600), text(LEFT - 40, 54, "GB/s", 13, MUTED)]
    for count in range(round(ceiling / step) + 1):
        level = y(count * step)
        out.append(stroke([(LEFT, level), (right, level)], GRID, 1))
        out.append(text(LEFT - 9, level + 4.5, f"{count * step:g}", 13, MUTED, "end"))
    for at in ticks:
        out.append(text(x(at), bottom + 21, f"{at:,}", 13, MUTED, "middle"))
    out.append(text((LEFT + right) / 2, bottom + 42, x_label, 13, MUTED, "middle"))
    if limit:
        out.append(stroke([(x(at), y(value)) for at, value in limit], INK, 1.5, "6 5"))
        label = f"limit: bare copy from page-locked memory, {number(limit[-1][1])}"
        highest = min(y(value) for _, value in limit)
        out.append(text(x(limit[-1][0]), highest - 9, label, 13, INK, "end"))
    for line in reversed(lines):
        points = [(x(at), y(value)) for at, value in line.points()]
        if len(points) == 1:  # it knows no workers: a level to compare with
            out.append(stroke([points[0], (x(ticks[-1]), points[0][1])], line.colour, 1.5, "2 4"))
        else:
            out.append(stroke(points, line.colour, 2.5))
        for at, level in points:
            fill = PAPER if line.peer else line.colour
            out.append(
                f'<circle cx="{at:.1f}" cy="{level:.1f}" r="4" fill="{fill}" stroke="{line.colour}" stroke-width="2"/>'
            )
    # Names stand beside the last tick, spread so that none covers another.
    levels = [y(line.last()) for line in lines]
    for label, line, old, level in zip(labels, lines, levels, spread(levels, TOP, bottom)):
        begin, end = x(ticks[-1]) + 8, x(ticks[-1]) + 32
        out.append(stroke([(begin, old), (end - 6, level)], line.colour, 1))
        out.append(text(end, level + 4.5, label, 13, line.colour, weight=600))
    return svg(height, title, out, caption)


def batches_per_second(results, caption):
    """Bars, grouped by the number of workers."""
    bars = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    colours = {}
    for result in results:
        if result["batch_size"] == 32 and result.get("variant") != "flat":
            name = name_of(result, False).removesuffix(", no workers")  # the heading says so
            bars[result["workers"]][name][result.get("prefetch")].append(result["batches_s"])
            colours[name] = colour_of(result | {"variant": None, "dtype": None})
    if not bars:
        return None
    groups = {
        workers: {name: max(map(median, depths.values())) for name, depths in names.items()}
        for workers, names in sorted(bars.items())
    }
    values = [value for names in groups.values() for value in names.values()]
    low = 10 ** math.floor(math.log10(min(values)) - 0.2)
    high = 10 ** math.ceil(math.log10(max(values)))
    left = 46 + max(text_width(name, bold=True) for name in colours)
    right = WIDTH - 40
    bottom = TOP + 27 * len(values) + 32 * len(groups) - 10
    height = bottom + BOTTOM

    def x(value):
        return left + (right - left) * math.log(value / low) / math.log(high / low)

    title = "Batches of 32 scalars a second, shuffled, on the host"
    out = [text(LEFT - 40, 30, title, 17, weight=600)]
    decade = low
    while decade <= high * 1.01:
        out.append(stroke([(x(decade), TOP - 14), (x(decade), bottom)], GRID, 1))
        out.append(text(x(decade), bottom + 21, short(decade), 13, MUTED, "middle"))
        decade *= 10
    out.append(text((left + right) / 2, bottom + 42, "batches per second (log scale)", 13, MUTED, "middle"))
    level = TOP - 10
    for workers, names in groups.items():
        heading = f"{workers} workers" if workers else "no workers"
        out.append(text(LEFT - 40, level + 8, heading, 13, MUTED, weight=600))
        level += 18
        for name, value in sorted(names.items(), key=lambda item: -item[1]):
            weight = 600 if name.startswith("pinfeed") else 400
            out.append(text(left - 10, level + 14.5, name, 13, INK, "end", weight))
            width = x(value) - left
            out.append(
                f'<rect x="{left:.1f}" y="{level}" width="{width:.1f}" height="19" rx="2" fill="{colours[name]}"/>'
            )
            inside = left + width + 8 + text_width(short(value), bold=True) > right
            at, ink, anchor = (-7, PAPER, "end") if inside else (7, INK, "start")
            out.append(text(left + width + at, level + 14.5, short(value), 13, ink, anchor, 600))
            level += 27
        level += 14
    return svg(height, title, out, caption)


def spread(levels, top, bottom, gap=17):
    """The same levels, moved apart as little as keeps them in order: first down, then up from the bottom."""
    order = sorted(range(len(levels)), key=levels.__getitem__)
    moved = dict(enumerate(levels))
    for before, here in zip(order, order[1:]):
        moved[here] = max(moved[here], moved[before] + gap)
    ceiling = bottom
    for here in reversed(order):
        moved[here] = max(top, min(moved[here], ceiling))
        ceiling = moved[here] - gap
    return [moved[index] for index in range(len(levels))]


def nice_step(raw):
    power = 10 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)


def number(value):
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def short(value):
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g}"


def text_width(content, size=13, bold=False):
    """About, and rather more: SVG cannot be asked."""
    em = sum(0.36 if letter in "ijl.,:' " else 0.62 for letter in content)
    return em * size * (1.09 if bold else 1)


def text(x, y, content, size, colour=INK, anchor="start", weight=400):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(content)}</text>'
    )


def stroke(points, colour, width, dashes=None):
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dashes}/>'


def svg(height, title, parts, caption):
    """The paper is a part of the picture: it is legible on a dark page too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="{FONT}" role="img" aria-label="{escape(title)}">'
    )
    paper = f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>'
    foot = text(LEFT - 40, height - 14, caption, 12, MUTED)
    return "\n".join([head, paper, *parts, foot, "</svg>", ""])


if __name__ == "__main__":
    main()
