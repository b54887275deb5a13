"""The loader: torch's arguments, lengths, epochs, states, ranks and ends."""

import copy
import gc
import json
import pickle
import threading

import numpy as np
import pytest

import pinfeed
from pinfeed import DataLoader, OptionError

torch = pytest.importorskip("torch")


def numbers(loader):
    """All numbers of an epoch, batch by batch."""
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 1, 3, "auto"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64])
def test_lengths_and_order_are_torchs(count, drop_last, num_workers):
    data = list(range(count))
    theirs = torch.utils.data.DataLoader(data, batch_size=4, drop_last=drop_last)
    ours = DataLoader(data, batch_size=4, drop_last=drop_last, num_workers=num_workers)
    assert len(ours) == len(theirs)
    assert numbers(ours) == numbers(theirs)
    assert ours.batch_size == 4


def test_shuffling_follows_from_the_seed_and_the_epoch():
    def epochs(seed, num_workers, count=3):
        loader = DataLoader(range(100), batch_size=8, shuffle=True, seed=seed, num_workers=num_workers)
        return [numbers(loader) for _ in range(count)]

    first = epochs(17, 0)
    assert first == epochs(17, 4)
    assert first != epochs(18, 0)
    assert first[0] != first[1] != first[2]
    for epoch in first:
        assert sorted(sum(epoch, [])) == list(range(100))


def test_epochs_follow_each_other_and_can_be_set():
    loader = DataLoader(range(20), batch_size=5, shuffle=True, num_workers=2)
    zero, one, two = numbers(loader), numbers(loader), numbers(loader)
    loader.set_epoch(1)
    assert numbers(loader) == one
    assert numbers(loader) == two
    for epoch, expected in ((0, zero), (2, two), (1, one)):
        loader.set_epoch(epoch)
        iterator = iter(loader)
        assert iterator.epoch == epoch
        assert numbers(iterator) == expected
        assert iterator.epoch == epoch


def test_several_iterators_are_alive():
    loader = DataLoader(range(12), batch_size=3, num_workers=2)
    first, second = iter(loader), iter(loader)
    got = [(next(first).tolist(), next(second).tolist()) for _ in range(4)]
    assert [pair[0] for pair in got] == [pair[1] for pair in got] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    for iterator in (first, second, first):
        with pytest.raises(StopIteration):
            next(iterator)
    # Nested loops over the same loader, left and begun again.
    for outer, _ in zip(loader, range(2)):
        for inner in loader:
            break
    assert numbers(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (2, 2)])
@pytest.mark.parametrize("taken", [0, 1, 5, 12])
def test_a_state_goes_on_in_mid_epoch_on_other_workers(before, after, taken):
    def made(num_workers):
        return DataLoader(range(50), batch_size=4, shuffle=True, seed=3, num_workers=num_workers)

    loader = made(before)
    numbers(loader)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    saved = json.loads(json.dumps(loader.state_dict()))  # plain values
    assert saved == iterator_state(iterator)
    rest = [numbers(iterator), numbers(loader)]

    resumed = made(after)
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    resumed.set_epoch(saved["epoch"])  # as a loop does that sets it each time
    assert [numbers(resumed), numbers(resumed)] == rest
    # A second time, with the same loader.
    resumed.load_state_dict(copy.deepcopy(saved))
    assert numbers(resumed) == rest[0]


def iterator_state(iterator):
    state, epoch, position = iterator.state()
    return {"version": 1, "epoch": epoch, "position": position, "state": state}


def test_a_state_counts_what_python_got_and_goes_on_on_other_ranks():
    loader = DataLoader(range(64), batch_size=4, shuffle=True, num_workers=2, world=pinfeed.World(0, 2), prefetch=8)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    saved = loader.state_dict()
    assert saved["position"] == 3 * 4 * 2
    alone = DataLoader(range(64), batch_size=8, shuffle=True)
    before = sum(numbers(alone)[:3], [])
    alone.load_state_dict(saved)
    rest = sum(numbers(alone), [])
    assert sorted(before + rest) == list(range(64))


@pytest.mark.parametrize(
    "state",
    [{}, None, {"state": "x"}, {"state": 3}, DataLoader(range(9), seed=4).state_dict(), DataLoader(range(10), seed=5).state_dict()],
)
def test_another_runs_state_is_refused(state):
    loader = DataLoader(range(9), seed=5)
    with pytest.raises((pinfeed.StateError, TypeError)):
        loader.load_state_dict(state)
    assert len(numbers(loader)) == 9


def test_ranks_share_the_samples_in_equally_many_steps(monkeypatch):
    ranks = [DataLoader(range(23), batch_size=4, shuffle=True, world=pinfeed.World(rank, 3)) for rank in range(3)]
    got = [numbers(rank) for rank in ranks]
    assert len({len(epoch) for epoch in got}) == len({len(rank) for rank in ranks}) == 1
    assert set(sum(sum(got, []), [])) == set(range(23))
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert pinfeed.World.from_env() == pinfeed.World(1, 3)
    assert numbers(DataLoader(range(23), batch_size=4, shuffle=True, world="env")) == got[1]
    with pytest.warns(UserWarning, match="WORLD_SIZE"):
        DataLoader(range(23))
    with pytest.raises(OptionError, match="ranks are from 0 to 2"):
        pinfeed.World(3, 3)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"persistent_workers": True}, "threads"),
        ({"prefetch_factor": 2}, "prefetch=4"),
        ({"multiprocessing_context": "spawn"}, "nothing is forked"),
        ({"worker_init_fn": print}, "sample_seed"),
        ({"generator": torch.Generator()}, "seed="),
        ({"pin_memory_device": "cuda"}, "device="),
        ({"batch_size": None}, "batches are made here"),
        ({"batch_size": 0}, "positive"),
        ({"num_workers": -1}, "number of threads"),
        ({"num_workers": "many"}, "auto"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "leave batch_size"),
        ({"sampler": [1], "shuffle": True}, "leave shuffle out"),
        ({"sampler": torch.utils.data.RandomSampler(range(9))}, "pinfeed.samplers"),
        ({"timeout": 3}, "needs workers"),
        ({"collate_fn": 3}, "cannot be called"),
        ({"output": "tensorflow"}, "torch"),
        ({"last_batch": "keep"}, "partial"),
        ({"drop_last": True, "last_batch": "fill"}, "one of them"),
        ({"on_error": "ignore"}, "replace"),
        ({"world": 3}, "World"),
        ({"device": "mps"}, "cuda"),
        ({"device": "cuda:0", "output": "numpy"}, ""),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed="),
        ({"prefetch": 2}, "prefetch"),
        ({"timeout": -1.0, "num_workers": 1}, "timeout"),
    ],
)
def test_options_without_meaning_are_refused_with_a_reason(option, why):
    with pytest.raises(pinfeed.Error) as error:
        DataLoader(range(9), **option)
    assert why in str(error.value)


def test_torchs_defaults_are_accepted():
    loader = DataLoader(
        range(9),
        1,
        None,
        None,
        None,
        0,
        None,
        False,
        False,
        0,
        None,
        None,
        None,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
    )
    assert sum(numbers(loader), []) == list(range(9))
    with pytest.raises(OptionError, match="DistributedSampler"):
        DataLoader(range(9), sampler=torch.utils.data.DistributedSampler(range(9), 2, 0))


def test_samplers_have_torchs_names():
    from pinfeed import samplers

    data = list(range(30))
    assert numbers(DataLoader(data, batch_size=30, sampler=[5, 3, 3]))[0] == [5, 3, 3]
    assert numbers(DataLoader(data, batch_size=30, sampler=np.array([5, 3])))[0] == [5, 3]
    assert numbers(DataLoader(data, batch_sampler=[[1, 2], [3], [29, 0]])) == [[1, 2], [3], [29, 0]]
    subset = DataLoader(data, batch_size=30, sampler=samplers.SubsetRandomSampler([1, 5, 9], seed=2))
    first, second = numbers(subset)[0], numbers(subset)[0]
    assert sorted(first) == sorted(second) == [1, 5, 9]
    weights = [0.0] * 29 + [1.0]
    weighted = samplers.WeightedRandomSampler(weights, 12)
    assert numbers(DataLoader(data, batch_size=30, sampler=weighted))[0] == [29] * 12
    assert len(samplers.RandomSampler(data)) == 30 and sorted(samplers.RandomSampler(data)) == data
    assert list(samplers.SequentialSampler(data)) == data
    with pytest.raises(pinfeed.Error, match="30"):
        numbers(DataLoader(data, sampler=[30]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_last_batch_can_be_filled(num_workers):
    got = numbers(DataLoader(range(10), batch_size=4, last_batch="fill", num_workers=num_workers))
    assert [len(batch) for batch in got] == [4, 4, 4]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_ends_the_loader(num_workers):
    before = threading.active_count()
    with DataLoader(range(100), batch_size=4, num_workers=num_workers) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
    for use in (lambda: next(iterator), lambda: iter(loader), lambda: len(loader), loader.state_dict, loader.stats):
        with pytest.raises(pinfeed.ClosedError, match="closed"):
            use()
    loader.close()  # again
    assert threading.active_count() == before


def test_loaders_refuse_pickling_and_data_sets_do_not():
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(DataLoader(range(3)))
    table = pinfeed.TensorDataset(np.arange(6), torch.arange(6))
    again = pickle.loads(pickle.dumps(table))
    assert numbers(DataLoader(again, batch_size=6).__iter__().__next__()) == [list(range(6))] * 2
    part = pickle.loads(pickle.dumps(pinfeed.Subset(table, [4, 2])))
    assert next(iter(DataLoader(part, batch_size=2)))[0].tolist() == [4, 2]


def test_an_iterator_belongs_to_one_thread_at_a_time():
    release, asked = threading.Event(), threading.Event()

    class Slow:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            asked.set()
            release.wait(20)
            return index

    iterator = iter(DataLoader(Slow(), num_workers=1))
    got = []
    thread = threading.Thread(target=lambda: got.append(next(iterator)))
    thread.start()
    assert asked.wait(20)
    refused = None
    for _ in range(1000):  # (until the thread waits)
        try:
            iterator.state()
        except RuntimeError as error:
            refused = error
            break
        if got:
            break
    release.set()
    thread.join()
    assert refused is not None and "another thread" in str(refused)
    assert got[0].tolist() == [0]
    assert next(iterator).tolist() == [1]


def test_stats_say_where_the_time_went():
    loader = DataLoader(range(100), batch_size=10, num_workers=2)
    list(loader)
    stats = loader.stats()
    assert (stats.samples, stats.batches, stats.epochs) == (100, 10, 1)
    assert "100 samples" in str(stats)
    assert 0 <= stats.starvation <= 1 and stats.samples_per_second > 0
    assert stats.loading > 0 and 0 < stats.waiting <= stats.wall_time + 1 and stats.transfer == 0
    list(loader)
    assert loader.total_stats().epochs >= 2


def test_epochs_opened_and_dropped_leave_nothing():
    loader = DataLoader(range(1000), batch_size=10, num_workers=2)
    import resource

    def threads():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))

    for _ in range(100):
        next(iter(loader))
    gc.collect()
    before, count = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, threads()
    for _ in range(2000):
        next(iter(loader))
    assert threads() <= count  # (those of earlier tests may end meanwhile)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


def test_loaders_made_and_dropped_leave_no_threads():
    def threads():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))

    class Local:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return index

    for _ in range(5):
        next(iter(DataLoader(Local(), num_workers=2)))
    before = threads()
    for _ in range(50):
        next(iter(DataLoader(Local(), num_workers=2)))
    assert threads() <= before + 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_pin_memory_without_a_gpu_is_a_warning_as_torchs():
    with pytest.warns(UserWarning, match="no GPU"):
        loader = DataLoader(range(4), batch_size=2, pin_memory=True)
    assert numbers(loader) == [[0, 1], [2, 3]]
    with pytest.raises(pinfeed.DeviceError):
        DataLoader(range(4), device="cuda:0")
