"""Prices learned from a table in folders by year, interrupted in the middle of an epoch, and resumed on other workers."""

import json
import pathlib
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pinfeed

with tempfile.TemporaryDirectory() as folder:
    rng = np.random.default_rng(1)
    size, rooms, year = rng.uniform(20, 200, 6000), rng.integers(1, 8, 6000), rng.integers(2019, 2023, 6000)
    price = 3000 * size + 10_000 * rooms + rng.normal(0, 1000, 6000)
    rooms = [None if number % 50 == 0 else int(room) for number, room in enumerate(rooms)]  # a form that was left empty
    pq.write_to_dataset(pa.table({"size": size, "rooms": rooms, "price": price, "year": year}), folder, partition_cols=["year"])

    def batches(filters, **options):
        houses = pinfeed.Parquet(
            folder, {"x": ["size", "rooms"], "y": "price"}, dtype={"x": "float32", "y": "float32"}, filters=filters, nulls={"rooms": 4}
        )
        return pinfeed.DataLoader(houses, batch_size=100, shuffle=True, seed=4, output="numpy", **options)

    weights, scale, checkpoint = np.zeros(2, np.float32), np.array([100, 4], np.float32), pathlib.Path(folder, "checkpoint.json")

    def train(loader, steps):
        global weights
        done = 0
        for epoch in range(20):
            for batch in loader:
                x, y = batch["x"] / scale, batch["y"] / 100_000
                weights -= 0.2 * x.T @ (x @ weights - y) / len(y)
                done += 1
                if done == steps:
                    checkpoint.write_text(json.dumps([loader.state_dict(), weights.tolist()]))
                    return

    train(batches([("year", "<", 2022)], num_workers=2), 333)  # and then the machine goes away
    state, saved = json.loads(checkpoint.read_text())
    weights = np.array(saved, np.float32)
    loader = batches([("year", "<", 2022)], num_workers=1)
    loader.load_state_dict(state)
    train(loader, 400)
    wrong = [abs(batch["x"] / scale @ weights * 100_000 - batch["y"]) for batch in batches([("year", "==", 2022)])]
    print("off by", round(float(np.mean(np.concatenate(wrong)))) < 20_000)
