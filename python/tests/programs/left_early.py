"""A loop is left after its first batch, and the program ends."""

import numpy as np

import pinfeed


class Random:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return np.zeros((28, 28))


for batch in pinfeed.DataLoader(Random(), batch_size=16, num_workers=2, output="numpy"):
    break
print("done")
