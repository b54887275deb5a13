"""Rows a second of Parquet files, by Hugging Face's `datasets` and by LitData, as their experts would set them up.

    python3 -m venv venv && venv/bin/pip install pyarrow datasets numpy pillow torch litdata psutil
    venv/bin/python parquet/benches/rows.py write /tmp/rows        # the files, for all
    cargo bench -p pinfeed-parquet --bench rows -- /tmp/rows       # pinfeed, and arrow's own reader
    venv/bin/python parquet/benches/rows.py datasets /tmp/rows
    venv/bin/python parquet/benches/rows.py litdata /tmp/rows

`numbers/` has four files of a million rows of eight float32 and an int64, `images/` four of 500 pictures of 92 KB (JPEG, as bytes, not decoded) and
an int64. A line is the best of three epochs: shuffled unless it says "in order", in batches of 1024 (numbers) or 64 (images) tensors.
"""

import io
import pathlib
import sys
import time

BATCH = {"numbers": 1024, "images": 64}


def write(folder):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    random = np.random.default_rng(17)
    (folder / "numbers").mkdir(parents=True, exist_ok=True)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for file in range(4):
        rows = 1_000_000
        columns = {f"x{at}": random.normal(size=rows).astype(np.float32) for at in range(8)}
        columns["y"] = random.integers(0, 1000, rows)
        # Noise has no dictionary: an expert says so. The index lets row groups be read in parts.
        pq.write_table(pa.table(columns), folder / f"numbers/{file}.parquet", use_dictionary=["y"], write_page_index=True)
    # A photo's spectrum: noise of falling amplitude, such that a JPEG of 500 by 375 pixels has about 92 KB.
    for file in range(4):
        pictures = []
        for _ in range(500):
            coarse = random.integers(0, 256, (24, 32, 3), np.uint8)
            picture = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.BICUBIC), np.int16)
            picture = (picture + random.normal(0, 24, picture.shape)).clip(0, 255).astype(np.uint8)
            encoded = io.BytesIO()
            Image.fromarray(picture).save(encoded, "JPEG", quality=85)
            pictures.append({"bytes": encoded.getvalue(), "path": None})
        table = pa.table({
            "image": pa.array(pictures, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "label": pa.array(random.integers(0, 1000, 500)),
        })
        # As `datasets` writes pictures.
        compression = {"image.bytes": "none", "image.path": "snappy", "label": "snappy"}
        pq.write_table(table, folder / f"images/{file}.parquet", row_group_size=100, compression=compression, use_dictionary=False, write_page_index=True)
        print(folder, file, len(pictures[0]["bytes"]))


def processor_seconds():
    """How long this process and its workers have kept cores busy."""
    import psutil

    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return sum(of.user + of.system for of in times)


def measure(name, epoch):
    """The best of three epochs, or of the first eight seconds of each, from the first batch on: by the clock, and by what processors did for it. An
    epoch is a function that returns an iterator of numbers of rows."""
    best = best_by_processor = 0
    for _ in range(3):
        batches = iter(epoch())
        next(batches)
        began, busy, rows = time.perf_counter(), processor_seconds(), 0
        for count in batches:
            rows += count
            if time.perf_counter() - began > 8:
                break
        best = max(best, rows / (time.perf_counter() - began))
        best_by_processor = max(best_by_processor, rows / max(processor_seconds() - busy, 0.01))
        del batches
    print(f"{name:60} {best:12,.0f} rows/s, {best_by_processor:12,.0f} a second of one core", flush=True)


def together(batch):
    """Pictures differ in length, so they are a list."""
    return batch


def rows_of(batch):
    return len(next(iter(batch.values())))


def of_datasets(folder):
    import datasets
    import torch

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    for kind in ["numbers", "images"]:
        files = sorted(str(file) for file in (folder / kind).glob("*.parquet"))
        batch = BATCH[kind]
        cache = str(folder / "cache")
        mapped = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        if kind == "images":
            mapped = mapped.cast_column("image", datasets.Image(decode=False))
            streamed = streamed.cast_column("image", datasets.Image(decode=False))
        of = "numpy" if kind == "numbers" else None
        shape = (lambda data: data.with_format(of)) if of else (lambda data: data)
        measure(f"datasets, {kind}, Arrow cache, iter, in order", lambda: (rows_of(b) for b in shape(mapped).iter(batch)))
        shuffled = mapped.shuffle(seed=1)
        measure(f"datasets, {kind}, Arrow cache, iter", lambda: (rows_of(b) for b in shape(shuffled).iter(batch)))
        iterable = mapped.to_iterable_dataset(num_shards=64).shuffle(seed=1, buffer_size=10_000 if kind == "numbers" else 500)
        measure(f"datasets, {kind}, Arrow cache, iterable, buffer", lambda: (rows_of(b) for b in shape(iterable).iter(batch)))
        measure(f"datasets, {kind}, streamed, iter, in order", lambda: (rows_of(b) for b in shape(streamed).iter(batch)))
        buffered = streamed.shuffle(seed=1, buffer_size=10_000 if kind == "numbers" else 500)
        measure(f"datasets, {kind}, streamed, iter, buffer", lambda: (rows_of(b) for b in shape(buffered).iter(batch)))
        for workers in [1, 2]:
            collate = together if kind == "images" else None
            # `__getitems__` gets a batch at once.
            loader = torch.utils.data.DataLoader(
                mapped.with_format("torch") if kind == "numbers" else mapped, batch_size=batch, shuffle=True, num_workers=workers,
                collate_fn=collate, persistent_workers=True,
            )
            measure(f"datasets, {kind}, Arrow cache, DataLoader, {workers} workers", lambda: (len(b) if isinstance(b, list) else rows_of(b) for b in loader))
            sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(mapped), batch, False)
            loader = torch.utils.data.DataLoader(
                mapped.with_format("torch") if kind == "numbers" else mapped, sampler=sampler, batch_size=None, num_workers=workers, persistent_workers=True,
            )
            measure(f"datasets, {kind}, Arrow cache, BatchSampler, {workers} workers", lambda: (rows_of(b) for b in loader))


def of_litdata(folder):
    import litdata
    import torch
    from litdata.streaming.item_loader import ParquetLoader

    for kind in ["numbers", "images"]:
        litdata.index_parquet_dataset(str(folder / kind))
        for shuffle in [False, True]:
            for workers in [0, 1, 2]:
                data = litdata.StreamingDataset(str(folder / kind), item_loader=ParquetLoader(), shuffle=shuffle)
                collate = together if kind == "images" else None
                loader = litdata.StreamingDataLoader(data, batch_size=BATCH[kind], num_workers=workers, collate_fn=collate, **({"persistent_workers": True, "multiprocessing_context": "spawn"} if workers else {}))
                order = "" if shuffle else ", in order"

                def epoch():
                    return (len(b) if kind == "images" else len(b[0] if isinstance(b, (list, tuple)) else next(iter(b.values()))) for b in loader)

                measure(f"LitData, {kind}, {workers} workers{order}", epoch)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ["write", "datasets", "litdata"]:
        sys.exit(__doc__)
    {"write": write, "datasets": of_datasets, "litdata": of_litdata}[sys.argv[1]](pathlib.Path(sys.argv[2]))
