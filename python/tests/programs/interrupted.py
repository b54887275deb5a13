"""Ctrl-C while the program waits for a batch: at once, and nothing is lost."""

import os
import signal
import sys
import threading
import time

import pinfeed

signal.signal(signal.SIGINT, signal.default_int_handler)  # (a shell that starts programs behind it has them ignore it)
num_workers = int(sys.argv[1])
gate, begins, asks = threading.Event(), threading.Event(), threading.Event()


class Slow:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3:
            begins.set()
            for _ in range(600):  # (a signal that comes right before a wait does not end it: Python looks at it afterwards)
                if gate.wait(0.05):
                    break
        return index


loader = pinfeed.DataLoader(Slow(), batch_size=1, num_workers=num_workers, output="numpy", on_error=sys.argv[2])
iterator = iter(loader)
got = [next(iterator).item() for _ in range(3)]


def interrupt():
    begins.wait()
    asks.wait()
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt).start()
begun = time.monotonic()
try:
    asks.set()
    next(iterator)
except KeyboardInterrupt:
    assert time.monotonic() - begun < 15
else:
    raise AssertionError("it was not interrupted")
state = loader.state_dict()["position"]
gate.set()
got += [batch.item() for batch in iterator]
print(state, got)
