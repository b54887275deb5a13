"""Iterables of the program's own: torch's `IterableDataset`, Hugging Face's, and classes with `__iter__`."""

import collections
import gc
import itertools
import json
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import pinfeed
from pinfeed import DataLoader

Point = collections.namedtuple("Point", ["x", "y"])


class Items:
    """Items by a function of their number, and by the epoch that was set."""

    def __init__(self, count=10, function=lambda number: number):
        self.count, self.function = count, function
        self.closed = 0

    def __iter__(self):
        try:
            for number in range(self.count):
                yield self.function(number)
        finally:
            self.closed += 1


class Counting:
    """An iterable whose iterator says where it stands."""

    def __init__(self, count=20):
        self.count, self.asked, self.opened = count, 0, 0

    def __iter__(self):
        self.opened += 1
        return Counter(self)


class Counter:
    def __init__(self, of):
        self.of, self.at = of, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.of.count:
            raise StopIteration
        self.of.asked += 1
        self.at += 1
        return self.at - 1

    def state_dict(self):
        return {"at": self.at, "who": "Counter"}

    def load_state_dict(self, state):
        assert state["who"] == "Counter"
        self.at = state["at"]


class Whole:
    """An iterable that says itself where it stands, as Hugging Face's do."""

    def __init__(self, count=20):
        self.count, self.at, self.begin, self.asked = count, 0, 0, 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for self.at in range(begin + 1, self.count + 1):
            self.asked += 1
            yield self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


def numbers(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 3])
def test_batches_are_those_of_torchs_loader(num_workers):
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self, function):
            self.function = function

        def __iter__(self):
            assert torch.utils.data.get_worker_info() is None
            return (self.function(number) for number in range(11))

    for function in (
        lambda i: i,
        lambda i: i / 3,
        lambda i: np.full((2, 3), i, np.float32),
        lambda i: torch.full((2,), i, dtype=torch.bfloat16),
        lambda i: {"x": torch.arange(3) + i, "name": f"{i}", "pair": (i, float(i))},
        lambda i: Point(i, -i),
    ):
        stream = Stream(function)
        for drop_last in (False, True):
            theirs = list(torch.utils.data.DataLoader(stream, batch_size=4, drop_last=drop_last))
            loader = DataLoader(stream, batch_size=4, num_workers=num_workers, drop_last=drop_last, output="torch")
            for _ in range(2):
                ours = list(loader)
                assert len(ours) == len(theirs) == (2 if drop_last else 3)
                for our, their in zip(ours, theirs):
                    assert str(our) == str(their) and type(our) is type(their)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterables_of_torchs_one_after_the_other(num_workers):
    torch = pytest.importorskip("torch")

    class Range(torch.utils.data.IterableDataset):
        def __init__(self, first, end):
            self.range = range(first, end)

        def __iter__(self):
            return iter(self.range)

    loader = DataLoader(Range(0, 5) + Range(20, 23), batch_size=3, num_workers=num_workers)
    for _ in range(2):
        assert numbers(loader) == [[0, 1, 2], [3, 4, 20], [21, 22]]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_each_epoch_begins_the_iterable_anew(num_workers):
    items = Items()
    loader = DataLoader(items, batch_size=4, num_workers=num_workers, output="numpy")
    for _ in range(3):
        assert numbers(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert items.closed == 3
    assert numbers(DataLoader(Items(0), output="numpy", num_workers=num_workers)) == []
    assert numbers(DataLoader(Items(8), batch_size=4, output="numpy", num_workers=num_workers)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_epoch_and_a_seed_are_told():
    class Shuffled:
        def __iter__(self):
            info = pinfeed.get_worker_info()
            assert (info.rank, info.world_size, info.id, info.num_workers) == (0, 1, 0, 1) and info.dataset is self
            order = np.random.default_rng([info.seed, info.epoch]).permutation(8)
            for number in order.tolist():
                assert pinfeed.get_worker_info() == info
                yield number

    assert pinfeed.get_worker_info() is None
    orders = {}
    for seed, num_workers in itertools.product((1, 2), (0, 2)):
        loader = DataLoader(Shuffled(), batch_size=8, seed=seed, num_workers=num_workers, output="numpy")
        orders[seed, num_workers] = [numbers(loader)[0] for _ in range(2)]
        assert orders[seed, num_workers][0] != orders[seed, num_workers][1]
        loader.set_epoch(1)
        assert numbers(loader)[0] == orders[seed, num_workers][1]
    assert orders[1, 0] == orders[1, 2] != orders[2, 0] == orders[2, 2]
    assert pinfeed.get_worker_info() is None

    told = []

    class Epochs(Items):
        def set_epoch(self, epoch):
            told.append(epoch)

    loader = DataLoader(Epochs(3), num_workers=1, output="numpy")
    for _ in range(2):
        list(loader)
    loader.set_epoch(7)
    list(loader)
    assert told == [0, 1, 7]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [Items, Counting, Whole])
@pytest.mark.parametrize("given", [0, 1, 3, 5])
def test_a_run_goes_on_in_the_middle_of_an_epoch(make, num_workers, given):
    whole = numbers(DataLoader(make(20), batch_size=4, output="numpy"))
    loader = DataLoader(make(20), batch_size=4, num_workers=num_workers, output="numpy")
    iterator = iter(loader)
    first = [next(iterator).tolist() for _ in range(given)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == 4 * given and state["epoch"] == 0
    del iterator, loader
    again = make(20)
    resumed = DataLoader(again, batch_size=4, num_workers=2 - num_workers, output="numpy")
    resumed.load_state_dict(state)
    assert first + numbers(resumed) == whole
    if make is not Items:
        time.sleep(0.01)
        assert again.asked == 20 - 4 * given  # nothing is read again, and nothing of the next epoch
    assert numbers(resumed) == whole  # the next epoch
    # In batches of another size, too.
    other = DataLoader(make(20), batch_size=3, output="numpy")
    other.load_state_dict(state)
    assert sum(first + numbers(other), []) == list(range(20))


def test_hugging_faces_streams_go_on_where_they_say():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": list(range(60)), "text": [f"{number}" for number in range(60)]})

    def stream():
        return table.to_iterable_dataset(num_shards=5).map(lambda row: {"double": 2 * row["x"]})

    def rows(loader):
        return [row for batch in loader for row in zip(batch["x"].tolist(), batch["double"].tolist(), batch["text"])]

    whole = [(row["x"], row["double"], row["text"]) for row in stream()]
    loader = DataLoader(stream(), batch_size=8, num_workers=2, output="numpy")
    assert rows(loader) == whole
    loader.set_epoch(0)
    iterator = iter(loader)
    first = rows(next(iterator) for _ in range(4))
    state = json.loads(json.dumps(loader.state_dict()))
    for num_workers in (0, 2):
        resumed = DataLoader(stream(), batch_size=8, num_workers=num_workers, output="numpy")
        resumed.load_state_dict(state)
        assert first + rows(resumed) == whole
        following = stream()
        following.set_epoch(1)  # (shards come in another order)
        assert rows(resumed) == [(row["x"], row["double"], row["text"]) for row in following]


def test_what_a_state_cannot_hold_is_said():
    class Odd(Counting):
        def __iter__(self):
            return OddCounter(self)

    class OddCounter(Counter):
        def state_dict(self):
            return {"at": self.at, "pair": (1, 2)}  # JSON makes a list of it

    for num_workers in (0, 2):
        iterator = iter(DataLoader(Odd(20), batch_size=4, num_workers=num_workers, output="numpy", on_error="skip"))
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(ValueError, match=r"state_dict of Odd's iterator is no plain data.*'pair': \(1, 2\)"):
            next(iterator)
        assert list(iterator) == []


def test_a_state_of_another_run_is_refused():
    loader = DataLoader(Counting(), batch_size=4, output="numpy")
    next(iter(loader))
    state = loader.state_dict()
    for other, why in [
        (DataLoader(Items(), batch_size=4), "source"),
        (DataLoader(Counting(), batch_size=4, seed=3), "seed"),
        (DataLoader(Counting(), batch_size=4, world=pinfeed.World(0, 2)), "ranks"),
        (DataLoader(range(20), batch_size=4), "no loader's state"),
    ]:
        with pytest.raises(pinfeed.StateError, match=why):
            other.load_state_dict(state)
    indexed = DataLoader(range(20), batch_size=4, output="numpy")
    with pytest.raises(pinfeed.StateError, match="no iterable's state"):
        loader.load_state_dict(indexed.state_dict())


class Files:
    """Files, of which each rank reads its own."""

    def __init__(self, files=10):
        self.files = files

    def __iter__(self):
        info = pinfeed.get_worker_info()
        for file in range(info.rank, self.files, info.world_size):
            for line in range(7):
                yield 100 * file + line


def test_ranks_read_their_own_and_go_on_from_their_own_states():
    make = lambda rank: DataLoader(Files(), batch_size=5, num_workers=2, world=pinfeed.World(rank, 3), output="numpy")  # noqa: E731
    whole = [numbers(make(rank)) for rank in range(3)]
    assert sorted(sum(sum(whole, []), [])) == [100 * file + line for file in range(10) for line in range(7)]
    states = []
    for rank in range(3):
        loader = make(rank)
        for _, batch in zip(range(rank + 2), loader):
            last = batch.tolist()
        assert last == whole[rank][rank + 1]
        states.append(loader.state_dict())
    for rank in range(3):
        loader = make(rank)
        loader.load_state_dict(states[rank])
        assert numbers(loader) == whole[rank][rank + 2 :]
        with pytest.raises(pinfeed.StateError, match="rank"):
            loader.load_state_dict(states[(rank + 1) % 3])


def test_an_iterable_that_does_not_ask_for_its_rank_is_noted(capfd):
    assert len(numbers(DataLoader(Items(), world=pinfeed.World(1, 2), output="numpy"))) == 10
    assert "Items has not asked pinfeed.get_worker_info() which of 2 ranks it is of" in capfd.readouterr().err
    numbers(DataLoader(Files(), world=pinfeed.World(1, 2), output="numpy"))
    assert capfd.readouterr().err == ""


def test_one_of_several_processes_is_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="an iterable splits itself"):
        DataLoader(Items())


class Boom(Exception):
    pass


def of_four(number):
    if number == 4:
        raise Boom("no such item")
    return number


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_an_exception_ends_a_generator_and_its_epoch(num_workers, on_error):
    # (Python ends it. Leaving it out would lose what is behind it, with no word about it.)
    loader = DataLoader(Items(10, of_four), batch_size=2, num_workers=num_workers, on_error=on_error, output="numpy")
    for _ in range(2):
        iterator, got = iter(loader), []
        with pytest.raises(Boom) as caught:
            for batch in iterator:
                got.append(batch.tolist())
        assert got == [[0, 1], [2, 3]] and caught.value.args == ("no such item",)
        said = "".join(caught.value.__notes__)
        assert "the iterable of epoch" in said and "cannot go on" in said and "item 4 of Items" in said
        assert any("of_four" in str(frame.name) for frame in caught.traceback)
        assert list(iterator) == []


class Stumbling:
    """An iterator that raises for some items, and goes on."""

    def __init__(self, bad, count=9):
        self.bad, self.count = bad, count

    def __iter__(self):
        return iter_of(self.bad, self.count)


class iter_of:
    def __init__(self, bad, count):
        self.bad, self.count, self.at = bad, count, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at == self.count:
            raise StopIteration
        if self.at in self.bad:
            raise Boom(self.at)
        return self.at


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_goes_on_loses_one_item(num_workers):
    for bad in ({4}, {0}, {5}, {3, 4, 5}):
        skipping = DataLoader(Stumbling(bad), batch_size=3, num_workers=num_workers, on_error="skip", output="numpy")
        if len(bad) < 3:
            assert sum(numbers(skipping), []) == [number for number in range(9) if number not in bad]
            assert skipping.total_stats().bad_samples == len(bad)
        iterator = iter(DataLoader(Stumbling(bad), batch_size=3, num_workers=num_workers, output="numpy"))
        got = []
        while True:
            try:
                got.append(next(iterator).tolist())
            except StopIteration:
                break
            except Boom as error:
                assert error.args == (min(bad),) and f"item {min(bad)} of Stumbling" in error.__notes__[0]
        assert got == [batch for batch in ([0, 1, 2], [3, 4, 5], [6, 7, 8]) if not bad & set(batch)]
    # The last item: nothing is behind it.
    with pytest.raises(Boom):
        numbers(DataLoader(Stumbling({8}), batch_size=3, num_workers=num_workers, on_error="skip", output="numpy"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_items_that_do_not_fit_are_errors_of_their_batch(num_workers):
    for function, error, why in [
        (lambda i: i if i != 4 else "four", pinfeed.CollateError, "an object"),
        (lambda i: np.zeros(3 if i != 4 else 5), pinfeed.CollateError, "shape"),
        (lambda i: i if i != 4 else object(), TypeError, "object"),
        (lambda i: i if i != 4 else 2**63, OverflowError, "int64"),
    ]:
        iterator, got = iter(DataLoader(Items(9, function), batch_size=3, num_workers=num_workers, output="numpy")), []
        got.append(next(iterator))
        with pytest.raises(error, match=why):
            next(iterator)
        got.append(next(iterator))
        assert list(iterator) == []
        if error is not pinfeed.CollateError:
            kept = list(DataLoader(Items(9, function), batch_size=3, num_workers=num_workers, output="numpy", on_error="skip"))
            assert [len(batch) for batch in kept] == [3, 2, 3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_that_does_not_open(num_workers):
    class Closed:
        def __iter__(self):
            raise Boom("shut")

    class Wrong:
        def __iter__(self):
            return 3

    loader = DataLoader(Closed(), num_workers=num_workers)
    for _ in range(2):
        with pytest.raises(Boom, match="shut") as caught:
            next(iter(loader))
        assert "opening Closed" in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="non-iterator"):
        next(iter(DataLoader(Wrong(), num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_epoch_that_is_left_closes_its_generator(num_workers):
    items = Items(10**9)
    loader = DataLoader(items, batch_size=4, num_workers=num_workers, output="numpy")
    for times in range(1, 4):
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(times)][-1] == list(range(4 * times - 4, 4 * times))
        del iterator
        deadline = time.monotonic() + 30
        while items.closed < times and time.monotonic() < deadline:
            time.sleep(0.01)
        assert items.closed == times
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(pinfeed.ClosedError):
        next(iterator)


def test_nothing_is_left_of_a_loader_that_is_gone():
    items = Items(1000, lambda number: np.zeros(10))
    watched = weakref.ref(items)
    loader = DataLoader(items, batch_size=4, num_workers=2, output="numpy")
    iterator = iter(loader)
    batch = next(iterator)
    before = sys.getrefcount(batch)
    del items, loader, iterator
    gc.collect()
    deadline = time.monotonic() + 30
    while watched() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        [0 for _ in DataLoader(range(1), num_workers=1)]  # (what a thread let go while it was not attached goes with the next that is)
    assert watched() is None and batch.shape == (4, 10) and sys.getrefcount(batch) == before


def test_an_item_that_hangs_ends_its_epoch():
    release = threading.Event()

    def function(number):
        if number == 4:
            release.wait(30)
        return number

    with DataLoader(Items(9, function), batch_size=2, num_workers=2, timeout=0.3, output="numpy") as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(TimeoutError):
            next(iterator)
        assert list(iterator) == []
        release.set()
        assert next(iter(loader)).tolist() == [0, 1]


def test_a_collate_fn_gets_the_items_as_they_are():
    class Thing:
        def __init__(self, number):
            self.number = number

    data = Items(7, Thing)
    for num_workers in (0, 2):
        batches = list(DataLoader(data, batch_size=3, num_workers=num_workers, collate_fn=lambda things: [thing.number for thing in things]))
        assert batches == [[0, 1, 2], [3, 4, 5], [6]]
    loader = DataLoader(Items(7, of_four), batch_size=3, collate_fn=list)
    with pytest.raises(Boom):
        list(loader)


def test_its_length_is_what_it_says():
    class Sized(Items):
        def __len__(self):
            return self.count

    assert len(DataLoader(Sized(10), batch_size=4)) == 3
    assert len(DataLoader(Sized(10), batch_size=4, drop_last=True)) == 2
    with pytest.raises(TypeError):
        len(DataLoader(Items(), batch_size=4))


def test_an_endless_iterable():
    class Endless:
        def __iter__(self):
            return itertools.count()

    loader = DataLoader(Endless(), batch_size=4, num_workers=2, output="numpy")
    for _ in range(2):
        got = [batch.tolist() for _, batch in zip(range(50), loader)]
        assert got[-1] == [196, 197, 198, 199]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"shuffle": True}, "says its order itself"),
        ({"sampler": [1, 2]}, "no index"),
        ({"batch_sampler": [[1, 2]]}, "no index"),
        ({"in_order": False}, "no gaps"),
        ({"last_batch": "fill"}, "empty places"),
        ({"on_error": "replace"}, "skip"),
        ({"on_error": ("replace", 3)}, "skip"),
    ],
)
def test_options_that_need_an_index_are_refused(options, why):
    with pytest.raises(pinfeed.OptionError, match=why):
        DataLoader(Items(), **options)


def test_an_iterator_is_no_data_set():
    for once in ((number for number in range(3)), iter([1, 2]), map(str, [1]), itertools.count()):
        with pytest.raises(pinfeed.OptionError, match="begins anew"):
            DataLoader(once)
    with pytest.raises(pinfeed.OptionError, match="__len__"):
        DataLoader(object())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_of_one_iterable_at_once(num_workers):
    items = Items(50)
    loader = DataLoader(items, batch_size=5, num_workers=num_workers, output="numpy")
    iterators = [iter(loader) for _ in range(3)]
    taken = [[] for _ in iterators]
    for at in range(30):
        taken[at % 3] += next(iterators[at % 3]).tolist()
    assert taken == [list(range(50))] * 3


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ctrl_c_comes_at_once_and_loses_nothing(run_program, num_workers, on_error):
    status, out, err = run_program("interrupted_iterable.py", num_workers, on_error)
    assert (status, out) == (0, "3 [0, 1, 2, 3, 4, 5]\n"), err


@pytest.mark.parametrize("what", ["quick", "sleeps", "loops", "catches", "deleted"])
def test_the_interpreter_ends_while_an_iterable_is_pulled(run_program, what):
    status, out, err = run_program("exits_iterable.py", what)
    assert (status, out, err) == (0, "end 3\n", "")
