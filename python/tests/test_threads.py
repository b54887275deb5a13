"""Several threads of the program's use what is shared: on a free-threaded Python, at the same time."""

import gc
import sys
import sysconfig
import threading

import numpy as np
import pytest

import pinfeed
from pinfeed import DataLoader

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture(autouse=True)
def often():
    """Threads take turns often, where there is a GIL."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(*functions, times=1):
    """Runs functions at the same time, each on a thread of its own; raises what they raise."""
    barrier, errors = threading.Barrier(len(functions) * times), []

    def run(function):
        barrier.wait()
        try:
            function()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(function,)) for function in functions * times]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class Own:
    def __init__(self, count=64):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": np.full(16, index, np.float32), "y": [index, f"{index}"]}


@pytest.mark.skipif(not FREE_THREADED, reason="this Python has a GIL")
def test_the_module_needs_no_gil():
    assert not sys._is_gil_enabled()


def made(count=64, **options):
    return DataLoader(Own(count), batch_size=4, output="numpy", **{"num_workers": 2, "shuffle": True, **options})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_threads_have_epochs_of_one_loader(num_workers):
    loader = made(num_workers=num_workers)
    seen, epochs = [], set()

    def whole_epochs():
        for _ in range(10):
            iterator = iter(loader)
            epochs.add(iterator.epoch)
            batches = list(iterator)
            seen.append(sorted(int(x) for batch in batches for x in batch["x"][:, 0]))
            assert all((batch["x"] == np.array(batch["y"][0])[:, None]).all() for batch in batches)

    together(whole_epochs, times=4)
    assert seen == [list(range(64))] * 40
    assert epochs == set(range(40))  # each thread got epochs of its own


def test_threads_that_share_an_iterator_get_each_batch_once_or_are_told():
    for _ in range(10):
        iterator, got, lock = iter(made()), [], threading.Lock()

        def take():
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except RuntimeError as error:
                    assert "another thread" in str(error)
                    continue
                with lock:
                    got.extend(int(x) for x in batch["x"][:, 0])

        together(take, times=4)
        assert sorted(got) == list(range(64))


def test_a_loader_is_closed_while_threads_use_it():
    for turn in range(30):
        loader = made(10_000_000, num_workers=turn % 3)  # no epoch of it ends
        iterator = iter(loader)

        def use(of):
            def loop():
                while True:
                    try:
                        of()
                    except (pinfeed.ClosedError, StopIteration):
                        return
                    except RuntimeError as error:
                        assert "another thread" in str(error), error

            return loop

        def close():
            for _ in range(turn % 5):
                try:
                    next(iterator)
                except RuntimeError:
                    pass
            loader.close()

        together(close, use(lambda: next(iter(loader))), use(loader.state_dict), use(lambda: next(iterator)), use(iterator.state), use(loader.stats))
        with pytest.raises(pinfeed.ClosedError):
            next(iterator)


def test_states_are_loaded_and_epochs_set_while_others_begin():
    loader = made()
    saved = loader.state_dict()

    def whole():
        for _ in range(20):
            assert len(list(loader)) == 16

    def left():
        for _ in range(40):
            next(iter(loader))

    def loaded():
        for _ in range(40):
            loader.load_state_dict(saved)

    def chosen():
        for epoch in range(40):
            loader.set_epoch(epoch % 3)

    together(whole, left, loaded, chosen)
    loader.load_state_dict(saved)
    assert sorted(int(x) for batch in loader for x in batch["x"][:, 0]) == list(range(64))


def test_loaders_are_made_and_dropped_on_many_threads():
    def loop():
        for turn in range(15):
            loader = made(num_workers=turn % 3)
            iterator = iter(loader)
            for _ in range(turn % 4):
                next(iterator)
            if turn % 2:
                del loader
            del iterator
        gc.collect()

    together(loop, times=4)


def test_what_samples_and_batches_hold_is_shared():
    table = pinfeed.TensorDataset(np.arange(4000, dtype=np.float32).reshape(1000, 4), np.arange(1000))
    mapped = table.map(lambda sample: (sample[0] * 2, int(sample[1])), output="numpy")
    one = {"x": np.zeros(8)}  # the same object in all samples

    def look():
        for index in range(0, 1000, 7):
            assert mapped[index][1] == index and table[index][0].shape == (4,)

    def load():
        x, y = next(iter(DataLoader(mapped, batch_size=1000, num_workers=2, output="numpy")))
        assert (x[:, 0] == 8 * y).all()

    def same():
        for batch in DataLoader([one] * 200, batch_size=10, num_workers=3, output="numpy"):
            assert batch["x"].shape == (10, 8)

    def exported():
        for x, _ in DataLoader(table, batch_size=50, num_workers=1, output="dlpack"):
            arrays = [np.from_dlpack(x) for _ in range(3)]
            assert all((array == arrays[0]).all() for array in arrays)

    together(look, load, same, exported, times=2)


def test_errors_come_out_on_each_thread():
    class Broken(Own):
        def __getitem__(self, index):
            if index % 8 == 3:
                raise KeyError(index)
            return super().__getitem__(index)

    def loop():
        iterator = iter(DataLoader(Broken(), batch_size=4, num_workers=2, output="numpy"))
        raised = given = 0
        while True:
            try:
                next(iterator)
                given += 1
            except KeyError as error:
                assert error.__notes__
                raised += 1
            except StopIteration:
                break
        assert (given, raised) == (8, 8)

    together(loop, times=6)
