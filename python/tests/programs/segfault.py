"""A sample's code reads address 0. A worker is a thread: the process ends, as by any crash."""

import ctypes

import pinfeed


class Broken:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return ctypes.string_at(0)


next(iter(pinfeed.DataLoader(Broken(), batch_size=2, num_workers=2, output="numpy")))
print("still here")
