"""The interpreter ends while workers pull an iterable."""

import sys
import threading
import time

import numpy as np

import pinfeed

what = sys.argv[1]
started = threading.Event()


class Busy:
    def __iter__(self):
        for index in range(1000):
            if index >= 4:
                started.set()
                if what == "loops":
                    while True:
                        pass
                if what == "sleeps":
                    time.sleep(20)
                if what == "catches":
                    while True:
                        try:
                            time.sleep(0.01)
                        except BaseException:
                            pass
            yield np.full(1000, index)


loader = pinfeed.DataLoader(Busy(), batch_size=2, num_workers=3, output="numpy")
iterator = iter(loader)
kept = [next(iterator), next(iterator)]
if what != "quick":
    started.wait()
if what == "deleted":
    del iterator, loader
print("end", kept[1][1][0])
