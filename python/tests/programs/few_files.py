"""Batches are kept, and the process may open few files: a batch is memory, and no file."""

import os
import resource

import numpy as np

import pinfeed


class Random:
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return np.full((2, 2), index, np.float32)


loader = pinfeed.DataLoader(Random(), num_workers=2, output="numpy")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
before = len(os.listdir("/proc/self/fd"))
kept = list(loader)
assert [batch[0, 0, 0] for batch in kept] == list(range(400))
assert len(os.listdir("/proc/self/fd")) <= before
print("done")
