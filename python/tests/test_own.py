"""Data sets, transforms and collate functions of the program's own."""

import collections
import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import pinfeed
from pinfeed import DataLoader

torch = pytest.importorskip("torch")
TorchLoader, default_collate = torch.utils.data.DataLoader, torch.utils.data.default_collate

Point = collections.namedtuple("Point", ["x", "y"])


class Own:
    """Samples by a function."""

    def __init__(self, function, count=7):
        self.function = function
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.function(index)


def same(ours, theirs):
    """Whether two batches are equal: structures, types and values. (torch gives strings as a list, or a tuple, by what is around them.)"""
    if isinstance(theirs, (list, tuple)) and isinstance(theirs[0], (str, bytes)):
        ours, theirs = list(ours), list(theirs)
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert torch.equal(ours, theirs) and ours.is_contiguous()
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs):
            same(our, their)
    else:
        assert ours == theirs


SAMPLES = {
    "int": lambda i: i,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 2 == 0,
    "string": lambda i: f"sample {i}",
    "bytes": lambda i: bytes([i]),
    "numpy int": lambda i: np.int32(i),
    "numpy float": lambda i: np.float32(i) / 3,
    "numpy bool": lambda i: np.bool_(i % 2),
    "array": lambda i: np.full((2, 3), i, np.float32),
    "array of bool": lambda i: np.array([i % 2 == 0, True]),
    "array of half": lambda i: np.full((2, 3), i, np.float16),
    "array of uint16": lambda i: np.full((2,), 65535 - i, np.uint16),
    "array of uint64": lambda i: np.full((2,), 2**64 - 1 - i, np.uint64),
    "int8": lambda i: np.full((2,), -i, np.int8),
    "not contiguous": lambda i: (np.arange(12).reshape(3, 4) + i).T,
    "reversed": lambda i: torch.from_numpy((np.arange(12) + i)[::-1].copy()),
    "empty array": lambda i: np.zeros((0, 3), np.float32),
    "scalar array": lambda i: np.array(i, np.float64),
    "tensor": lambda i: torch.full((2, 3), i),
    "tensor of bool": lambda i: torch.tensor([i % 2 == 0]),
    "bfloat16": lambda i: torch.full((2, 3), i / 3, dtype=torch.bfloat16),
    "half": lambda i: torch.full((2, 3), i / 3, dtype=torch.float16),
    "transposed tensor": lambda i: (torch.arange(6).reshape(2, 3) + i).T,
    "scalar tensor": lambda i: torch.tensor(i),
    "gradient": lambda i: torch.full((2,), float(i), requires_grad=True).detach(),
    "tuple": lambda i: (np.full(3, i), i, f"{i}"),
    "list": lambda i: [i, i / 2],
    "dict": lambda i: {"x": torch.full((2,), i), "y": i, "name": f"{i}"},
    "named tuple": lambda i: Point(i, float(i)),
    "nested": lambda i: {"a": (i, {"b": [np.full(2, i), Point(f"{i}", True)]})},
    "ordered dict": lambda i: {"b": i, "a": -i},
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLES)
def test_batches_are_those_of_default_collate(name, num_workers):
    data = Own(SAMPLES[name])
    theirs = list(TorchLoader(data, batch_size=3))
    for _ in range(2):
        ours = list(DataLoader(data, batch_size=3, num_workers=num_workers, output="torch"))
        same(ours, theirs)


def test_numpy_arrays_come_where_they_are_asked_for():
    data = Own(lambda i: {"x": np.full((2, 3), i, np.float16), "y": i, "z": i % 2 == 0})
    batch = next(iter(DataLoader(data, batch_size=4, output="numpy")))
    assert {key: (type(value), value.dtype.name, value.shape) for key, value in batch.items()} == {
        "x": (np.ndarray, "float16", (4, 2, 3)),
        "y": (np.ndarray, "int64", (4,)),
        "z": (np.ndarray, "bool", (4,)),
    }
    assert batch["x"].flags.writeable and batch["x"].flags.aligned
    batch["x"][:] = 7  # it is the program's
    with pytest.raises(pinfeed.Error, match="bfloat16"):
        next(iter(DataLoader(Own(lambda i: torch.zeros(2, dtype=torch.bfloat16)), output="numpy")))


@pytest.mark.parametrize(
    ("function", "error", "why"),
    [
        (lambda i: i if i != 4 else "four", pinfeed.CollateError, "an object"),
        (lambda i: np.zeros(3 if i != 4 else 5), pinfeed.CollateError, "shape"),
        (lambda i: np.zeros(3, np.float32 if i != 4 else np.float64), pinfeed.CollateError, "float64"),
        (lambda i: (1, 2) if i != 4 else (1, 2, 3), pinfeed.CollateError, "parts"),
        (lambda i: {"a": 1} if i != 4 else {"b": 1}, pinfeed.CollateError, '"a"'),
        (lambda i: {"a": 1} if i != 4 else {"a": 1, "b": 1}, pinfeed.CollateError, '"b"'),
        (lambda i: i if i != 4 else None, TypeError, "NoneType"),
        (lambda i: i if i != 4 else object(), TypeError, "object"),
        (lambda i: i if i != 4 else 2**63, OverflowError, "int64"),
        (lambda i: np.zeros(2) if i != 4 else np.zeros(2, np.complex64), TypeError, "format"),
        (lambda i: np.zeros(2, ">f4"), TypeError, "byte order"),
        (lambda i: {(1, 2): 3}, TypeError, "str and int keys"),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_that_do_not_fit_are_errors_and_the_epoch_goes_on(function, error, why, num_workers):
    iterator = iter(DataLoader(Own(function), batch_size=3, num_workers=num_workers, output="numpy"))
    raised, given = [], 0
    while True:
        try:
            next(iterator)
            given += 1
        except StopIteration:
            break
        except error as caught:
            raised.append(caught)
    assert given + len(raised) == 3 and raised
    assert why in str(raised[0])


class Boom(Exception):
    pass


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Boom, KeyError, StopIteration, AssertionError])
def test_the_programs_own_exception_comes_out_and_names_the_sample(kind, num_workers):
    def function(index):
        if index == 4:
            raise kind("no such sample")
        return index

    loader = DataLoader(Own(function), batch_size=2, num_workers=num_workers)
    for _ in range(2):
        iterator = iter(loader)
        got = [next(iterator).tolist(), next(iterator).tolist()]
        with pytest.raises(RuntimeError if kind is StopIteration else kind) as caught:
            next(iterator)
        error = caught.value
        if kind is StopIteration:
            assert isinstance(error.__cause__, StopIteration)
            said = str(error)
        else:
            assert error.args == ("no such sample",)
            said = "".join(error.__notes__)
            assert any("function" in str(frame.name) for frame in caught.traceback)
        assert "sample 4 (Own[4]), row 0 of batch 2" in said
        got.append(next(iterator).tolist())
        assert got == [[0, 1], [2, 3], [6]]


def test_bad_samples_are_replaced_or_left_out():
    def function(index):
        if index == 4:
            raise Boom
        return index

    skipped = [batch.tolist() for batch in DataLoader(Own(function), batch_size=3, on_error=("skip", 2))]
    assert skipped == [[0, 1, 2], [3, 5], [6]]
    loader = DataLoader(Own(function), batch_size=3, on_error="replace", num_workers=2)
    assert [len(batch) for batch in loader] == [3, 3, 1]
    assert loader.stats().bad_samples == 1
    with pytest.raises(pinfeed.SampleError):
        list(DataLoader(Own(function), batch_size=3, on_error="skip", bad_share=(0.01, 1)))


def test_a_sample_that_hangs_is_an_error():
    release = threading.Event()

    def function(index):
        if index == 2:
            release.wait(30)
        return index

    iterator = iter(DataLoader(Own(function, 4), num_workers=2, timeout=0.2))
    assert next(iterator).tolist() == [0] and next(iterator).tolist() == [1]
    with pytest.raises(TimeoutError, match="sample 2"):
        next(iterator)
    assert next(iterator).tolist() == [3]
    release.set()


def test_getitems_is_asked_for_several():
    asked = []

    class Batched(Own):
        def __getitems__(self, indices):
            asked.append(list(indices))
            return [self.function(index) for index in indices]

    loader = DataLoader(Batched(lambda i: i * i, 64), batch_size=16, num_workers=2)
    assert [batch.tolist() for batch in loader] == [[i * i for i in range(at, at + 16)] for at in range(0, 64, 16)]
    assert any(len(indices) > 1 for indices in asked)

    def broken(index):
        if index == 5:
            raise Boom
        return index

    iterator = iter(DataLoader(Batched(broken, 16), batch_size=8, num_workers=1))
    with pytest.raises(Boom) as caught:
        next(iterator)
    assert "sample 5" in caught.value.__notes__[0]
    assert next(iterator).tolist() == list(range(8, 16))

    class Short(Own):
        def __getitems__(self, indices):
            return []

    with pytest.raises(ValueError, match="0 samples for"):
        next(iter(DataLoader(Short(None, 16), batch_size=8)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_fn_makes_any_batch(num_workers):
    def collate(samples):
        assert isinstance(samples, list)
        return {"longest": max(map(len, samples)), "samples": samples}

    data = Own(lambda i: [0] * i)
    theirs = list(TorchLoader(data, batch_size=3, collate_fn=collate))
    assert list(DataLoader(data, batch_size=3, collate_fn=collate, num_workers=num_workers)) == theirs
    same(list(DataLoader(Own(SAMPLES["nested"]), batch_size=3, collate_fn=default_collate)), list(TorchLoader(Own(SAMPLES["nested"]), batch_size=3)))

    def broken(samples):
        if 4 in samples:
            raise Boom("no batch")
        return samples

    iterator = iter(DataLoader(Own(lambda i: i), batch_size=3, collate_fn=broken, num_workers=num_workers))
    assert next(iterator) == [0, 1, 2]
    with pytest.raises(Boom) as caught:
        next(iterator)
    assert "batch 1" in caught.value.__notes__[0]
    assert next(iterator) == [6]


def test_functions_change_samples_of_any_data_set():
    table = pinfeed.TensorDataset(np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6))
    changed = table.map(lambda sample: (sample[0] * 2, int(sample[1]) + 1))
    x, y = next(iter(DataLoader(changed, batch_size=6, num_workers=2)))
    assert x.tolist() == (np.arange(12).reshape(6, 2) * 2).tolist() and y.tolist() == [1, 2, 3, 4, 5, 6]
    twice = changed.map(lambda sample: {"x": sample[0], "y": sample[1]})
    assert next(iter(DataLoader(twice, batch_size=2)))["y"].tolist() == [1, 2]
    assert isinstance(table.map(lambda sample: type(sample[0]).__name__, output="numpy")[0], str)
    assert next(iter(DataLoader(table.map(lambda sample: type(sample[0]).__name__, output="numpy")))) == ["ndarray"]
    assert next(iter(DataLoader(table, batch_size=2, collate_fn=lambda samples: [int(y) for _, y in samples]))) == [0, 1]
    with pytest.raises(Boom) as caught:
        next(iter(DataLoader(table.map(lambda sample: (_ for _ in ()).throw(Boom())))))
    assert "sample 0" in caught.value.__notes__[0]


def test_each_sample_has_its_own_seed():
    def seeds(num_workers, epochs=2):
        loader = DataLoader(Own(lambda i: pinfeed.sample_seed() >> 1, 20), batch_size=4, shuffle=True, seed=7, num_workers=num_workers)
        return [[batch.tolist() for batch in loader] for _ in range(epochs)]

    assert pinfeed.sample_seed() is None
    first = seeds(0)
    assert first == seeds(3)
    assert len({seed for epoch in first for batch in epoch for seed in batch}) == 40
    drawn = DataLoader(Own(lambda i: np.random.default_rng(pinfeed.sample_seed()).random(), 20), batch_size=20, num_workers=2)
    assert len(set(next(iter(drawn)).tolist())) == 20


def test_a_worker_keeps_its_thread_locals():
    local, made = threading.local(), []

    def function(index):
        if not hasattr(local, "connection"):
            local.connection = object()
            made.append(threading.get_ident())
        return index

    loader = DataLoader(Own(function, 200), batch_size=4, num_workers=2)
    for _ in range(3):
        list(loader)
    assert len(made) <= 2 == len(set(made)) or len(made) == len(set(made)) == 1


def test_references_go_when_the_batches_go():
    class Payload:
        pass

    alive = weakref.WeakSet()

    def function(index):
        payload = Payload()
        alive.add(payload)
        return payload

    loader = DataLoader(Own(function, 100), batch_size=10, num_workers=2, collate_fn=lambda samples: samples, prepare_next=False)
    for batch in loader:
        assert len(batch) == 10
    del batch
    gc.collect()
    DataLoader(range(1)).__iter__().__next__()  # what detached threads dropped goes when one attaches next
    assert len(alive) == 0
    # Left in the middle.
    iterator = iter(loader)
    next(iterator)
    del iterator
    loader.close()
    time.sleep(0.05)
    DataLoader(range(1)).__iter__().__next__()
    gc.collect()
    assert len(alive) == 0

    array = np.zeros(1000, np.float32)
    before = sys.getrefcount(array)
    loader = DataLoader(Own(lambda i: array, 100), batch_size=10, num_workers=2)
    batches = list(loader)
    loader.close()
    del loader
    gc.collect()
    DataLoader(range(1)).__iter__().__next__()
    assert sys.getrefcount(array) == before and len(batches) == 10

    data = Own(lambda i: i)
    kept = weakref.ref(data)
    loader = DataLoader(data, num_workers=2)
    list(loader)
    del data, loader
    gc.collect()
    DataLoader(range(1)).__iter__().__next__()
    gc.collect()
    assert kept() is None


def test_batches_outlive_their_loader_and_are_never_written_again():
    def made():
        return DataLoader(Own(lambda i: np.full((64, 64), i, np.int32), 64), batch_size=4, num_workers=2, output="numpy")

    batches = list(made())
    more = [list(made()) for _ in range(3)]
    gc.collect()
    for epoch in [batches, *more]:
        for place, batch in enumerate(epoch):
            assert (batch == np.arange(4 * place, 4 * place + 4).reshape(4, 1, 1)).all()
    addresses = {batch.ctypes.data for epoch in [batches, *more] for batch in epoch}
    assert len(addresses) == 64


def test_a_data_set_that_is_none_is_refused():
    for data in (3, iter([1, 2]), object()):
        with pytest.raises(pinfeed.OptionError):
            DataLoader(data)

    class NoLength:
        def __getitem__(self, index):
            return index

    with pytest.raises(pinfeed.OptionError, match="__len__"):
        DataLoader(NoLength())


def test_a_loader_inside_a_data_set():
    inner = DataLoader(range(10), batch_size=10)
    loader = DataLoader(Own(lambda i: int(sum(next(iter(inner)).tolist())) + i, 4), batch_size=4, num_workers=2)
    assert next(iter(loader)).tolist() == [45, 46, 47, 48]
    cell = []
    own = DataLoader(Own(lambda i: next(iter(cell[0])).sum(), 4), batch_size=2, num_workers=1)
    cell.append(own)
    with pytest.raises(pinfeed.Error):
        next(iter(own))


def test_a_data_set_that_changes_between_epochs_is_seen():
    class Curriculum(Own):
        difficulty = 0

    data = Curriculum(lambda i: (i, data.difficulty), 12)
    loader = DataLoader(data, batch_size=4, num_workers=2)
    for difficulty in range(5):
        data.difficulty = difficulty
        for _, seen in loader:
            assert seen.tolist() == [difficulty] * 4
