"""Tar shards of a bucket, interrupted in the middle of an epoch. Their index is kept in a folder, so that the next run reads no headers."""

import sys
import tempfile

import pinfeed


def loader(index, num_workers):
    shards = pinfeed.WebDataset(sys.argv[1], ["__key__", "cls"], keep_index=index)
    return pinfeed.DataLoader(shards, batch_size=5, shuffle=True, seed=6, num_workers=num_workers, output="numpy")


with tempfile.TemporaryDirectory() as index:
    running = loader(index, 2)
    seen = [label for _, (_, labels) in zip(range(3), running) for label in labels.tolist()]
    state = running.state_dict()
    running.close()
    resumed = loader(index, 1)
    resumed.load_state_dict(state)
    for keys, labels in resumed:
        assert [int(key) for key in keys] == labels.tolist()
        seen += labels.tolist()
    print(len(seen), sorted(seen) == list(range(24)))
