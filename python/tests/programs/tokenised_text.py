"""Tokens in lists, padded by a function of the program's, on two ranks in processes of their own, which are then one."""

import json
import multiprocessing
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pinfeed


def pad(samples):
    rows = [np.asarray(sample["tokens"]) for sample in samples]
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for place, row in zip(tokens, rows):
        place[: len(row)] = row
    return {"tokens": tokens, "lengths": np.array([len(row) for row in rows])}


def loader(folder, rank, ranks, batch_size):
    texts = pinfeed.Parquet(f"{folder}/part-*.parquet", ["tokens"])
    return pinfeed.DataLoader(
        texts, batch_size, shuffle=True, seed=7, num_workers=2, collate_fn=pad, world=pinfeed.World(rank, ranks), output="numpy"
    )


def rank(folder, number, steps, results):
    mine = loader(folder, number, 2, 8)
    seen = [row[:length].tolist() for _, batch in zip(range(steps), mine) for row, length in zip(batch["tokens"], batch["lengths"])]
    results.put((seen, json.dumps(mine.state_dict())))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        texts = [[number] * (1 + number % 7) for number in range(400)]
        for part in range(4):
            own = pa.table({"tokens": pa.array(texts[100 * part : 100 * part + 100], pa.list_(pa.int32()))})
            pq.write_table(own, f"{folder}/part-{part}.parquet", row_group_size=30)
        spawn = multiprocessing.get_context("spawn")
        results = spawn.Queue()
        ranks = [spawn.Process(target=rank, args=(folder, number, 10, results)) for number in range(2)]
        for process in ranks:
            process.start()
        (first, state), (second, other) = results.get(), results.get()
        for process in ranks:
            process.join()
        assert state == other
        alone = loader(folder, 0, 1, 16)
        alone.load_state_dict(json.loads(state))
        rest = [row[:length].tolist() for batch in alone for row, length in zip(batch["tokens"], batch["lengths"])]
        print(len(first), len(second), len(rest), sorted(first + second + rest) == sorted(texts))
        sys.exit()
