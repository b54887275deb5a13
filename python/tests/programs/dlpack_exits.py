"""The interpreter ends while tensors, and capsules that nobody consumed, are alive."""

import sys
import threading
import time

import numpy as np

import pinfeed

what = sys.argv[1]
data = pinfeed.TensorDataset(np.repeat(np.arange(100), 5000).reshape(100, 5000))
loader = pinfeed.DataLoader(data, batch_size=4, num_workers=2, output="dlpack")
iterator = iter(loader)
kept = [next(iterator)[0] for _ in range(8)]
if what == "capsules":
    kept += [tensor.__dlpack__(max_version=version) for tensor in kept for version in (None, (1, 0))]
if what == "arrays":
    kept = [np.from_dlpack(tensor) for tensor in kept]
    sys.modules["kept"] = kept  # torn down late
if what == "thread":

    def exchange():
        while True:
            kept[1] = np.from_dlpack(kept[2])
            kept[3] = kept[4].__dlpack__()

    for _ in range(3):
        threading.Thread(target=exchange, daemon=True).start()
    time.sleep(0.05)
if what == "cycle":

    class Cycle:
        pass

    cycle = Cycle()
    cycle.own, cycle.kept, cycle.arrays = cycle, kept, [tensor.__dlpack__() for tensor in kept]
    del cycle
if what == "jax":
    import jax

    arrays = [jax.dlpack.from_dlpack(tensor) for tensor in kept]
if what == "torch":
    import torch

    arrays = [torch.from_dlpack(tensor) for tensor in kept]
    del loader, iterator
print("end", np.asarray(kept[0])[3, 0])
