"""The training loop raises, with its iterator alive, and large batches in flight."""

import numpy as np

import pinfeed


class Empty:
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return np.empty(0)


iterator = iter(pinfeed.DataLoader(Empty(), batch_size=40_960, num_workers=1, output="numpy"))
for batch in iterator:
    assert batch.shape == (40_960, 0)
    raise RuntimeError("the loop's own")
