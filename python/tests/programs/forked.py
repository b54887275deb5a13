"""A loader in a process that was forked: its calls say what to do, and its end does not wait."""

import os
import sys

import pinfeed

loader = pinfeed.DataLoader(range(100), batch_size=10, num_workers=int(sys.argv[1]), output="numpy")
iterator = iter(loader)
next(iterator)
for ending in ("exit", "del", "close"):
    child = os.fork()
    if child == 0:
        uses = [lambda: next(iterator), lambda: iter(loader), lambda: len(loader), loader.state_dict, loader.stats, lambda: loader.set_epoch(3)]
        for use in uses:
            try:
                use()
            except pinfeed.ForkError as error:
                assert "spawn" in str(error), error
            else:
                os._exit(3)
        own = pinfeed.DataLoader(range(10), batch_size=5, num_workers=1, output="numpy")  # one of its own
        assert [batch.tolist() for batch in own] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        if ending == "close":
            loader.close()
        if ending == "del":
            del iterator, loader, uses, use
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, ending
assert sum(len(batch) for batch in iterator) == 90  # the parent's goes on
print("done")
