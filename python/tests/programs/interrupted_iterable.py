"""Ctrl-C while an iterable is pulled: at once, and nothing is lost."""

import os
import signal
import sys
import threading
import time

import pinfeed

signal.signal(signal.SIGINT, signal.default_int_handler)  # (a shell that starts programs behind it has them ignore it)
num_workers = int(sys.argv[1])
gate = threading.Event()


class Slow:
    def __iter__(self):
        for index in range(6):
            if index == 3:
                gate.wait(30)
            yield index


loader = pinfeed.DataLoader(Slow(), batch_size=1, num_workers=num_workers, output="numpy", on_error=sys.argv[2])
iterator = iter(loader)
got = [next(iterator).item() for _ in range(3)]
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    next(iterator)
except KeyboardInterrupt:
    assert time.monotonic() - begun < 15
else:
    raise AssertionError("it was not interrupted")
state = loader.state_dict()["position"]
gate.set()
got += [batch.item() for batch in iterator]
print(state, got)
