#!/usr/bin/env python3
"""Draws a class folder of JPEG files that cost a decoder what photographs cost: 476x404, quality 90, chroma subsampled (4:2:0,
as cameras and most web sites do), 109 KB on average.

    python3 benches/peers/photos.py FOLDER [IMAGES]

Needs NumPy and Pillow. `cargo bench --bench feed -- jpeg --data FOLDER` and `pytorch.py jpeg --data FOLDER` read it.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy
from PIL import Image

WIDTH, HEIGHT, QUALITY, CLASSES = 476, 404, 90, 10
NOISE = 25.5  # with it, files of 109 KB come out on average


def paint(index):
    """Smooth gradients, some edges, and noise."""
    rng = numpy.random.default_rng(index)
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH].astype(numpy.float32)
    picture = numpy.empty((HEIGHT, WIDTH, 3), numpy.float32)
    for channel in range(3):
        across, down, phase = rng.uniform(-0.03, 0.03, 2).tolist() + [rng.uniform(0, 6.3)]
        picture[..., channel] = 128 + 70 * numpy.sin(across * x + down * y + phase)
    for _ in range(12):
        left, top = rng.integers(0, WIDTH - 60), rng.integers(0, HEIGHT - 60)
        width, height = rng.integers(10, 60, 2)
        picture[top : top + height, left : left + width] += rng.uniform(-60, 60, 3)
    picture += rng.normal(0, NOISE, picture.shape[:2])[..., None]
    return numpy.clip(picture, 0, 255).astype(numpy.uint8)


def draw(folder, index):
    path = folder / f"class-{index % CLASSES}" / f"{index:06}.jpg"
    Image.fromarray(paint(index)).save(path, quality=QUALITY)
    return path.stat().st_size


def main():
    folder, images = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 6_000
    for label in range(CLASSES):
        (folder / f"class-{label}").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(partial(draw, folder), range(images), chunksize=32))
    print(f"{images} files of {sum(sizes) / images / 1e3:.1f} KB on average in {folder}")


if __name__ == "__main__":
    main()
