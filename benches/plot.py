#!/usr/bin/env python3
"""Draws what the benches measured: JSON lines in, SVG files out. Standard library only.

    python3 benches/plot.py results/*.jsonl --out docs/plots --caption "H200, PCIe 5 x16, 16 cores, 2026-11-20"

- tensor-workers.svg  throughput to the device against the number of workers, beside the limit
- tensor-batch.svg    throughput to the device against the batch size, beside the limit
- tiny.svg            batches of scalars a second, on a log scale

Where results repeat, their median is drawn. A plot without results is left out.
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
OURS = ["#0b57d0", "#0a8043", "#7b1fa2", "#00838f"]
PEERS = ["#c2410c", "#8a5a00", "#57606a", "#a3195b"]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDTH, LEFT, TOP, BOTTOM = 820, 66, 74, 78
VARIANTS = {
    "loop": "",
    "ahead": "sent ahead",
    "registered": "registered data set",
    "workers": "",
    "no_workers": "",
    "get": "",
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
    who = result.get("peer") or "pinfeed"
    who = who.replace("pytorch", "PyTorch")
    variant = result.get("variant") or ""
    parts = [who, VARIANTS.get(variant, variant.replace("_", " "))]
    if with_dtype and result.get("dtype"):
        parts.append(result["dtype"])
    return ", ".join(part for part in parts if part)


def lines_of(results, x, with_dtype):
    """Lines of (name, is a peer's, points), the fastest first."""
    found = defaultdict(lambda: defaultdict(list))
    for result in results:
        found[name_of(result, with_dtype), bool(result.get("peer"))][result[x]].append(result["gb_s"])
    lines = [
        (name, peer, sorted((at, median(values)) for at, values in points.items()))
        for (name, peer), points in found.items()
    ]
    return sorted(lines, key=lambda line: -line[2][-1][1])


def against_workers(results, caption):
    if not results:
        return None
    batch_size = 256 if any(result["batch_size"] == 256 for result in results) else most_common(results, "batch_size")
    results = [result for result in results if result["batch_size"] == batch_size]
    limits = [result["limit_gb_s"] for result in results if result.get("limit_gb_s")]
    lines = lines_of(results, "workers", True)
    ticks = sorted({at for _, _, points in lines for at, _ in points})
    limit = [(at, median(limits)) for at in (ticks[0], ticks[-1])] if limits else None
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
    results = [result for result in results if result["dtype"] == dtype]
    # PyTorch's ways without workers are held against ours with them.
    results = [result for result in results if result["workers"] in ((0, workers) if result.get("peer") else (workers,))]
    for result in results:
        if result.get("peer") and result["workers"] == 0 and result["variant"] == "no_workers" and workers:
            result["variant"] = "no workers"
    limits = defaultdict(list)
    for result in results:
        if result.get("limit_gb_s"):
            limits[result["batch_size"]].append(result["limit_gb_s"])
    limit = sorted((size, median(values)) for size, values in limits.items()) or None
    lines = lines_of(results, "batch_size", False)
    ticks = sorted({at for _, _, points in lines for at, _ in points})
    title = f"In-memory images to the device, shuffled, {dtype}, {workers} workers"
    return chart(title, "samples in a batch (150 KB each as u8, 602 KB as f32)", lines, ticks, limit, caption)


def chart(title, x_label, lines, ticks, limit, caption):
    """Lines over evenly spaced ticks, each with its name at its end."""
    height = 470
    colours = {False: iter(OURS * 9), True: iter(PEERS * 9)}
    lines = [(name, peer, points, next(colours[peer])) for name, peer, points in lines]
    ends = [f"{name}  {points[-1][1]:.1f}" for name, _, points, _ in lines]
    right = WIDTH - 28 - max(map(text_width, ends))
    bottom = height - BOTTOM
    values = [value for _, _, points, _ in lines for _, value in points] + [value for _, value in limit or []]
    step = nice_step(max(values) * 1.1 / 5)
    top_value = math.ceil(max(values) * 1.08 / step) * step

    def x(at):
        return LEFT + 26 + (right - LEFT - 40) * (ticks.index(at) / max(1, len(ticks) - 1))

    def y(value):
        return bottom - (bottom - TOP) * value / top_value

    out = [text(LEFT - 40, 30, title, 17, weight=600), text(LEFT - 40, 54, "GB/s", 13, MUTED)]
    for number in range(round(top_value / step) + 1):
        level = y(number * step)
        out.append(line(LEFT, level, right, level, GRID))
        out.append(text(LEFT - 9, level + 4.5, f"{number * step:g}", 13, MUTED, "end"))
    for at in ticks:
        out.append(text(x(at), bottom + 21, f"{at:,}", 13, MUTED, "middle"))
    out.append(text((LEFT + right) / 2, bottom + 42, x_label, 13, MUTED, "middle"))
    if limit:
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in limit if at in ticks)
        out.append(f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.5" stroke-dasharray="6 5"/>')
        top = max(value for _, value in limit)
        first = limit[0][1]
        at, anchor = (x(limit[0][0]), "start") if first > 0.95 * top else (x(limit[-1][0]), "end")
        label = f"limit: bare copy from page-locked memory, {top:.1f} GB/s"
        out.append(text(at, y(top) - 9, label, 13, INK, anchor))
    for _, peer, points, colour in reversed(lines):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>')
        for at, value in points:
            fill = PAPER if peer else colour
            out.append(
                f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="4" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
            )
    # Names stand beside the last tick, spread so that none covers another.
    label_x = x(ticks[-1]) + 30
    wanted = [y(points[-1][1]) for _, _, points, _ in lines]
    for label, (_, _, points, colour), level, old in zip(ends, lines, spread(wanted, TOP, bottom), wanted):
        begin = x(points[-1][0]) + 8
        if points[-1][0] == ticks[-1]:
            out.append(line(begin, old, label_x - 5, level, colour, 1))
        else:  # the line ends early: its name is beside its end
            level, label_here = old, begin + 2
            out.append(text(label_here, level - 8, label, 13, colour, weight=600))
            continue
        out.append(text(label_x, level + 4.5, label, 13, colour, weight=600))
    return svg(height, title, out, caption)


def batches_per_second(results, caption):
    """Bars, grouped by the number of workers."""
    found = defaultdict(list)
    for result in results:
        if result["batch_size"] == 32 and result.get("variant") != "flat":
            found[result["workers"], name_of(result, False), bool(result.get("peer"))].append(result["batches_s"])
    if not found:
        return None
    bars = sorted(
        ((workers, name, peer, median(values)) for (workers, name, peer), values in found.items()),
        key=lambda bar: (bar[0], -bar[3]),
    )
    low = 10 ** math.floor(math.log10(min(value for *_, value in bars)) - 0.3)
    high = 10 ** math.ceil(math.log10(max(value for *_, value in bars)))
    left = 40 + max(text_width(name) for _, name, _, _ in bars)
    right = WIDTH - 40
    groups = sorted({workers for workers, *_ in bars})
    bottom = TOP + 27 * len(bars) + 34 * len(groups)
    height = bottom + BOTTOM

    def x(value):
        return left + (right - left) * math.log(value / low) / math.log(high / low)

    title = "Batches of 32 scalars a second, shuffled, on the host"
    out = [text(LEFT - 40, 30, title, 17, weight=600)]
    decade = low
    while decade <= high * 1.01:
        out.append(line(x(decade), TOP - 14, x(decade), bottom, GRID))
        out.append(text(x(decade), bottom + 21, short(decade), 13, MUTED, "middle"))
        decade *= 10
    out.append(text((left + right) / 2, bottom + 42, "batches per second (log scale)", 13, MUTED, "middle"))
    level, group = TOP - 12, None
    for workers, name, peer, value in bars:
        if workers != group:
            group, level = workers, level + 34 if group is not None else level + 20
            heading = f"{workers} workers" if workers else "no workers"
            out.append(text(LEFT - 40, level, heading, 13, MUTED, weight=600))
            level += 10
        colour = PEERS[0] if peer else OURS[0]
        end = x(value)
        out.append(text(left - 10, level + 14.5, name, 13, INK, "end", 400 if peer else 600))
        opacity = ' fill-opacity="0.75"' if peer else ""
        out.append(f'<rect x="{left}" y="{level}" width="{end - left:.1f}" height="19" rx="2" fill="{colour}"{opacity}/>')
        inside = end + 8 + text_width(short(value)) > right
        at, ink, anchor = (end - 7, PAPER, "end") if inside else (end + 7, INK, "start")
        out.append(text(at, level + 14.5, short(value), 13, ink, anchor, 600))
        level += 27
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


def short(value):
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g}"


def text_width(content, size=13):
    """About: SVG cannot be asked."""
    return sum(0.34 if letter in "ijlt.,:'| " else 0.6 for letter in content) * size


def text(x, y, content, size, colour=INK, anchor="start", weight=400):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(content)}</text>'
    )


def line(x1, y1, x2, y2, colour, width=1):
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


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
