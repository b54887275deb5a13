"""What PyTorch's own tests of its `DataLoader` ask (pytorch/pytorch, test/test_dataloader.py), asked of this loader.

docs/python-dataloader-tests.md is the table: test by test, what agrees, what differs and why. Each of its rows names a test of this folder,
or says why there is none.
"""

import collections
import pathlib
import re
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import pinfeed
from pinfeed import ConcatDataset, DataLoader, OptionError, Subset, TensorDataset, World, random_split, samplers

torch = pytest.importorskip("torch")
TorchLoader = torch.utils.data.DataLoader
TESTS = pathlib.Path(__file__).parent
TABLE = TESTS.parents[1] / "docs" / "python-dataloader-tests.md"


class Own:
    """Samples by a function."""

    def __init__(self, function, count=8):
        self.function = function
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.function(index)


@pytest.fixture
def table():
    """A hundred rows, and a label of each."""
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(100, 2, 3, 5, generator=generator), torch.randperm(100, generator=generator))


def threads():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


# The table itself


def test_each_row_of_the_table_is_held_or_says_why_not():
    rows = [line for line in TABLE.read_text().splitlines() if re.match(r"\| `?Test", line)]
    sources = {path: path.read_text() for path in TESTS.glob("*.py")}
    defined = {name for text in sources.values() for name in re.findall(r"^def (\w+)", text, re.MULTILINE)}
    assert len(rows) > 50
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert cells[1] in ("agrees", "differs", "no counterpart"), row
        held = re.findall(r"`(\w+)`", cells[3])
        assert held or cells[3].startswith("not held: "), row
        assert cells[3].startswith("not held: ") or set(held) <= defined, (row, set(held) - defined)


# Splits


@pytest.mark.parametrize("shares", [[1, 2], [0.1], [1.1], [0.5, 0.6]])
def test_a_split_has_all_samples(shares):
    with pytest.raises(ValueError, match="add up to"):
        random_split([1, 2, 3, 4], shares)
    with pytest.raises(ValueError):
        torch.utils.data.random_split([1, 2, 3, 4], shares)
    with pytest.raises(ValueError, match="from 0 on"):
        random_split([1, 2, 3, 4], [-1, 5])


@pytest.mark.parametrize(("count", "shares"), [(6, [2, 4]), (6, [0.5, 0.5]), (3, [0.5, 0.5]), (106, [0.1, 0.2, 0.3, 0.4]), (5, [1.0])])
def test_parts_of_a_split_are_as_long_as_torchs_and_have_each_sample_once(count, shares):
    data = [3 * index for index in range(count)]
    ours, theirs = random_split(data, shares), torch.utils.data.random_split(data, shares)
    assert [len(part) for part in ours] == [len(part) for part in theirs]
    assert sorted(sample for part in ours for sample in part) == data


def test_a_split_asks_for_ints():
    asked = []
    (whole,) = random_split(Own(lambda index: asked.append(type(index)) or index, 5), [1.0])
    assert sorted(torch.cat(list(DataLoader(whole))).tolist()) == list(range(5))
    assert asked == [int] * 5


def test_a_split_follows_from_its_seed_and_leaves_torchs_generator_alone():
    def parts(seed):
        return [list(part) for part in random_split(range(100), [0.33, 0.33, 0.34], seed=seed)]

    assert parts(42) == parts(42) != parts(43)
    before = torch.get_rng_state()
    parts(1)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(OptionError, match="seed=17"):
        random_split(range(10), [3, 7], generator=torch.Generator().manual_seed(1))


def test_slices_of_tensors_and_of_subsets():
    numbers = torch.arange(10, 20)
    data = TensorDataset(numbers, 2 * numbers)
    part = Subset(data, [0, 1, 2, 3, 4])
    twice = Subset(part, [4, 3, 2])
    first, rest = random_split(data, [3, 7])
    for place in (slice(None), slice(1, 2), slice(0, -1, 2), slice(3, 3), [2, 0], [-1]):
        for own, chosen in ((data, list(range(10))), (part, part.indices), (twice, [4, 3, 2]), (first, first.indices), (rest, rest.indices)):
            expected = [chosen[index] for index in place] if isinstance(place, list) else chosen[place]
            got = own[place]
            assert isinstance(got, tuple)
            assert torch.equal(got[0], numbers[expected]) and torch.equal(got[1], 2 * numbers[expected])
    with pytest.raises(IndexError):
        data[[10]]
    with pytest.raises(TypeError):
        Subset(list(range(5)), [1, 2])[:]  # the list has several at once by a slice only


# Data sets


@pytest.mark.parametrize("shapes", [[(15, 10, 2, 3)], [(15,)], [(15, 10, 2), (15,)], [(15, 2), (15, 10), (15, 1, 5), (15, 0)]])
def test_rows_of_tensors(shapes):
    tensors = [torch.randn(shape) for shape in shapes]
    data = TensorDataset(*tensors)
    assert len(data) == 15
    for index in range(-15, 15):
        sample = data[index]
        assert isinstance(sample, tuple) and len(sample) == len(tensors)
        for own, tensor in zip(sample, tensors):
            assert own.dtype == tensor.dtype and torch.equal(own, tensor[index])
    with pytest.raises(ValueError, match="rows"):
        TensorDataset(torch.zeros(3), torch.zeros(4))


def test_torchs_stacked_data_sets_are_taken_as_they_are():
    x, y = TensorDataset(torch.randn(15, 10)), [2 * index for index in range(15)]
    stacked = torch.utils.data.StackDataset(x=x, y=y)
    for num_workers in (0, 2):
        ours = list(DataLoader(stacked, batch_size=4, num_workers=num_workers))
        theirs = list(TorchLoader(stacked, batch_size=4))
        for own, their in zip(ours, theirs, strict=True):
            assert torch.equal(own["x"][0], their["x"][0]) and torch.equal(own["y"], their["y"])


def test_data_sets_one_after_the_other():
    joined = ConcatDataset([[0, 1, 2, 3, 4], [], [5, 6, 7, 8, 9]])
    assert len(joined) == 10
    assert [joined[index] for index in range(10)] == list(joined) == list(range(10)) and joined[-1] == 9
    for beyond in (10, 11, -11):
        with pytest.raises(IndexError):
            joined[beyond]
    with pytest.raises(ValueError, match="empty"):
        ConcatDataset([])
    first, second, third = (TensorDataset(torch.full((7, 2), number), torch.arange(7)) for number in range(3))
    added = first + second + third
    assert len(added) == 21 and [added[index][0][0].item() for index in (0, 7, 14)] == [0, 1, 2]
    assert [batch[0][0, 0].item() for batch in DataLoader(added, batch_size=7, num_workers=2)] == [0, 1, 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_may_be_a_subclass_of_ours(num_workers):
    class Squares(pinfeed.Dataset):
        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            return index * index

    for data in (Squares(6), Squares(3) + Subset(Squares(6), [3, 4, 5])):
        assert torch.cat(list(DataLoader(data, batch_size=4, num_workers=num_workers))).tolist() == [0, 1, 4, 9, 16, 25]
    assert next(iter(DataLoader(Squares(3).map(float), batch_size=3))).tolist() == [0.0, 1.0, 4.0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_subclass_that_gives_other_samples_is_asked_for_them(pictures, num_workers):
    class Numbered(pinfeed.ImageFolder):
        def __getitem__(self, index):
            picture, label = super().__getitem__(index)
            return picture, label, index

    data = Numbered(pictures, pinfeed.transforms.eval(32))
    plain = pinfeed.ImageFolder(pictures, pinfeed.transforms.eval(32))
    for ours, theirs in ((data, plain), (Subset(data, [5, 20]), Subset(plain, [5, 20]))):
        loaders = (DataLoader(own, batch_size=5, num_workers=num_workers) for own in (ours, theirs))
        for (picture, label, index), (expected, its_label) in zip(*loaders, strict=True):
            assert torch.equal(picture, expected) and torch.equal(label, its_label) and len(index) == len(label)


def test_pictures_within_samples_of_yours_are_cropped_anew_in_each_epoch(pictures):
    folder = pinfeed.ImageFolder(pictures, pinfeed.transforms.train(32))

    class Twice(pinfeed.ImageFolder):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], folder[index][0]

    def epochs(num_workers):
        loader = DataLoader(Twice(pictures, pinfeed.transforms.train(32)), batch_size=24, num_workers=num_workers, seed=3)
        return [next(iter(loader)) for _ in range(2)]

    first, second = epochs(0)
    for batch, again in zip((first, second), epochs(2), strict=True):
        assert torch.equal(batch[0], again[0]) and torch.equal(batch[1], again[1])
    assert not any(torch.equal(one, other) for one, other in zip(first[0], second[0], strict=True))
    joined = torch.utils.data.ConcatDataset([folder, folder])  # of torch's
    loader = DataLoader(joined, batch_size=48, num_workers=2)
    one, other = (next(iter(loader))[0] for _ in range(2))
    assert not torch.equal(one, other)


def test_a_subset_of_torchs_over_a_data_set_of_ours_needs_no_python(table):
    part = torch.utils.data.Subset(torch.utils.data.Subset(table, range(10, 40)), [3, 1, 2])
    loader = DataLoader(part, batch_size=3)
    assert torch.equal(next(iter(loader))[1], table.tensors[1][[13, 11, 12]])
    assert not pinfeed._datasets.as_dataset(part)._runs_python
    assert torch.equal(next(iter(DataLoader(torch.utils.data.Subset(Own(lambda index: index), [3, 1]), batch_size=2))), torch.tensor([3, 1]))


# Order


@pytest.mark.parametrize("num_workers", [0, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_batches_are_the_rows_in_order(table, batch_size, num_workers):
    loader = DataLoader(table, batch_size=batch_size, num_workers=num_workers)
    assert len(loader) == -(-100 // batch_size)
    count = 0
    for place, (samples, labels) in enumerate(loader):
        rows = slice(place * batch_size, (place + 1) * batch_size)
        assert torch.equal(samples, table.tensors[0][rows]) and torch.equal(labels, table.tensors[1][rows])
        count += 1
    assert count == len(loader)


@pytest.mark.parametrize("num_workers", [0, 4])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_shuffled_each_sample_comes_once_with_its_label(table, batch_size, num_workers):
    loader = DataLoader(table, batch_size=batch_size, shuffle=True, num_workers=num_workers)
    row_of = {label: row for row, label in enumerate(table.tensors[1].tolist())}
    seen = []
    for samples, labels in loader:
        rows = [row_of[label] for label in labels.tolist()]
        assert torch.equal(samples, table.tensors[0][rows])
        seen += rows
    assert sorted(seen) == list(range(100)) and seen != list(range(100))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_loaders_of_one_seed_shuffle_alike(table, num_workers):
    def labels(seed):
        return [label for _, batch in DataLoader(table, batch_size=3, shuffle=True, num_workers=num_workers, seed=seed) for label in batch.tolist()]

    torch.manual_seed(5)
    first = labels(42)
    torch.manual_seed(6)
    assert first == labels(42) != labels(43)


@pytest.mark.parametrize("collection", [list, tuple])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_becomes_a_list_or_a_tuple(collection, num_workers):
    got = collection(DataLoader(range(20), batch_size=2, num_workers=num_workers))
    assert isinstance(got, collection) and [batch.tolist() for batch in got] == [[index, index + 1] for index in range(0, 20, 2)]


def test_loaders_take_turns(table):
    first, second = iter(DataLoader(table, num_workers=1)), iter(DataLoader(table, num_workers=2))
    for place in range(5):
        assert torch.equal(next(first)[1], next(second)[1]), place
    del first
    assert next(second)[1].item() == table.tensors[1][5].item()


def test_samples_that_are_slow_hold_others_back_only_in_order():
    def taken(in_order):
        release = threading.Event()

        def function(index):
            if index == 2 and not in_order:
                release.wait(30)
            return index

        got = []
        for batch in DataLoader(Own(function, 10), num_workers=2, in_order=in_order):
            got.append(batch.item())
            if len(got) == 3:
                release.set()
        return got

    assert taken(True) == list(range(10))
    without = taken(False)
    assert sorted(without) == list(range(10)) and without[2] != 2


def test_samples_added_later_are_not_seen():
    data = [torch.ones(4) for _ in range(4)]
    loader = DataLoader(data, shuffle=True)
    data.append(torch.ones(4))
    assert len(loader) == len(list(loader)) == 4
    assert len(DataLoader(data)) == 5
    del data[2:]
    with pytest.raises(IndexError):
        list(loader)


# Samplers


@pytest.mark.parametrize("num_samples", [None, 49, 50, 51, 100])
@pytest.mark.parametrize("replacement", [False, True])
def test_a_random_sampler_draws_as_torchs(num_samples, replacement):
    ours = samplers.RandomSampler(range(50), replacement, num_samples)
    theirs = torch.utils.data.RandomSampler(range(50), replacement, num_samples)
    assert len(ours) == len(theirs) == len(list(ours)) == len(list(theirs))
    counts = collections.Counter(ours)
    assert min(counts) >= 0 and max(counts) < 50
    if not replacement:  # each once before any comes again
        assert sorted(counts.values()) == sorted(collections.Counter(theirs).values())
    elif len(ours) > 50:
        assert max(counts.values()) > 1
    for batch_size in (1, 6):
        loader = DataLoader(range(50), batch_size=batch_size, sampler=ours)
        assert len(loader) == len(list(loader)) == -(-len(ours) // batch_size)


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: samplers.RandomSampler(range(5), replacement=0), TypeError),
        (lambda: samplers.RandomSampler(range(5), num_samples=-1), ValueError),
        (lambda: samplers.RandomSampler(range(5), num_samples=0), ValueError),
        (lambda: samplers.WeightedRandomSampler([1.0], 0), ValueError),
        (lambda: samplers.WeightedRandomSampler([1.0, -1.0], 1), ValueError),
        (lambda: samplers.RandomSampler(range(5), generator=torch.Generator()), OptionError),
        (lambda: samplers.SubsetRandomSampler([1, 2], torch.Generator()), OptionError),
        (lambda: samplers.SubsetRandomSampler([1, -2]), OptionError),
        (lambda: DataLoader(range(5), sampler=[0, -1]), OptionError),
        (lambda: DataLoader(range(5), batch_sampler=[[0, -1]]), OptionError),
        (lambda: World(3, 3), ValueError),
        (lambda: World(-1, 3), ValueError),
    ],
)
def test_samplers_and_ranks_that_cannot_be_are_refused(made, error):
    with pytest.raises(error):
        made()


def test_a_sampler_is_a_function_of_its_seed():
    weights = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6]
    for made in (
        lambda seed: samplers.RandomSampler(range(99), True, 50, seed=seed),
        lambda seed: samplers.RandomSampler(range(99), seed=seed),
        lambda seed: samplers.WeightedRandomSampler(weights * 9, 30, seed=seed),
        lambda seed: samplers.WeightedRandomSampler(weights * 9, 30, False, seed=seed),
        lambda seed: samplers.SubsetRandomSampler(range(30), seed=seed),
    ):
        sampler = made(7)
        assert list(sampler) == list(sampler) == list(made(7)) != list(made(8))
        both = [pair for pair in zip(sampler, sampler)]
        assert all(one == other for one, other in both)
        # (torch's goes on with its generator; here, another epoch is another order.)
        assert sampler.indices(0) == list(sampler) != sampler.indices(1)


@pytest.mark.parametrize("num_workers", [0, 4])
def test_any_sequence_of_indices_is_an_order(table, num_workers):
    loader = DataLoader(table, sampler=range(2, 12), batch_size=2, num_workers=num_workers)
    assert len(loader) == 5
    for _ in range(2):
        assert [labels.tolist() for _, labels in loader] == table.tensors[1][2:12].reshape(5, 2).tolist()
    batches = [tuple(range(at, at + size)) for at, size in ((0, 2), (2, 3), (5, 2), (7, 3), (10, 2), (12, 3))]
    loader = DataLoader(table, batch_sampler=batches, num_workers=num_workers)
    assert len(loader) == 6
    for samples, batch in zip(loader, batches, strict=True):
        assert torch.equal(samples[0], table.tensors[0][list(batch)])


def test_batches_that_would_be_the_same_in_each_epoch_are_not_taken_in_silence():
    theirs = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(9)), 3, False)
    with pytest.raises(OptionError, match="list"):
        DataLoader(range(9), batch_sampler=theirs)
    listed = list(theirs)
    assert [batch.tolist() for batch in DataLoader(range(9), batch_sampler=listed)] == listed


def test_ranks_that_drop_their_last_have_no_sample_twice():
    for shuffle in (False, True):
        got = [DataLoader(range(9), batch_size=2, drop_last=True, shuffle=shuffle, world=World(rank, 4)) for rank in range(4)]
        samples = [sample for loader in got for batch in loader for sample in batch.tolist()]
        assert len(samples) == len(set(samples)) == 8


# Arguments


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "spawn"},
        {"multiprocessing_context": "bad", "num_workers": 1},
        {"multiprocessing_context": object(), "num_workers": 1},
        {"sampler": [1, 2], "shuffle": True, "batch_size": 11},
        {"sampler": [1, 2], "batch_sampler": [[1], [2]]},
        {"sampler": [1, 2], "batch_sampler": [[1], [2]], "shuffle": True},
        {"batch_sampler": [[1], [2]], "batch_size": 11},
        {"batch_sampler": [[1], [2]], "shuffle": True},
        {"batch_sampler": [[1], [2]], "shuffle": 3},
        {"batch_sampler": [[1], [2]], "drop_last": True},
        {"batch_sampler": [[1], [2]], "drop_last": 3},
        {"sampler": 3},
        {"batch_sampler": 3},
        {"prefetch_factor": 2, "num_workers": 2},
        {"worker_init_fn": print, "num_workers": 2},
        {"pin_memory": True, "pin_memory_device": "cuda"},
    ],
)
def test_arguments_that_do_not_go_together_are_value_errors(table, options):
    with pytest.raises(ValueError):
        DataLoader(table, **options)


@pytest.mark.parametrize("name", ["dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "num_workers", "collate_fn", "seed", "in_order"])
def test_what_a_loader_is_made_of_cannot_be_set_later(name):
    loader = DataLoader(range(9))
    with pytest.raises(ValueError, match=name):
        setattr(loader, name, {})
    loader.note = "of the program's"
    assert loader.note and len(list(loader)) == 9


def test_a_loaders_type_has_its_batches():
    def made() -> DataLoader[list[torch.Tensor]]:
        return DataLoader(range(3))

    assert len(made()) == 3 and DataLoader[dict] is not None


def test_more_workers_than_cores_are_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(range(2000), batch_size=2, num_workers=100)
    assert sum(batch.sum().item() for batch in loader) == 1999 * 1000


# What samples become


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float64", "DoubleTensor"),
        ("float32", "FloatTensor"),
        ("float16", "HalfTensor"),
        ("int64", "LongTensor"),
        ("int32", "IntTensor"),
        ("int16", "ShortTensor"),
        ("int8", "CharTensor"),
        ("uint8", "ByteTensor"),
    ],
)
def test_numpys_numbers_and_arrays_keep_their_types(name, kind, num_workers):
    scalar = getattr(np, name)
    batch = next(iter(DataLoader(Own(lambda index: scalar(index)), batch_size=3, num_workers=num_workers)))
    assert batch.type() == f"torch.{kind}" and batch.tolist() == [0, 1, 2]
    batch = next(iter(DataLoader(Own(lambda index: np.ones((2, 3, 4), scalar) * scalar(index)), batch_size=8, num_workers=num_workers)))
    assert batch.type() == f"torch.{kind}" and batch.shape == (8, 2, 3, 4)


class Fields(dict):
    """A dict with an attribute."""

    note = None


class Parts(list):
    pass


class Wrapped(collections.UserDict):
    pass


class Frozen(collections.abc.Mapping):
    """A mapping that cannot be written, and that a dict cannot make."""

    def __init__(self, a, b):
        self.entries = {"a": a, "b": b}

    def __getitem__(self, key):
        return self.entries[key]

    def __len__(self):
        return len(self.entries)

    def __iter__(self):
        return iter(self.entries)


STRUCTURES = {
    "dict": lambda i: {"a": i, "b": 2 * i},
    "subclass of dict": lambda i: Fields(a=i, b=Parts([i, Fields(c=i)])),
    "OrderedDict": lambda i: collections.OrderedDict(b=i, a=-i),
    "defaultdict": lambda i: collections.defaultdict(list, a=i),
    "UserDict": lambda i: Wrapped(a=i, b=f"{i}"),
    "a mapping that refuses": lambda i: Frozen(i, -i),
    "subclass of list": lambda i: Parts([1, 2 * i, 3]),
    "deque": lambda i: collections.deque([i, 1.5], 5),
    "range": lambda i: range(i, i + 2),
    "within": lambda i: [{"x": Fields(a=np.full(2, i)), "y": (i, Parts([i]))}],
    "bools": lambda i: i % 2 == 0,
    "strings of NumPy's": lambda i: np.str_(i),
    "rows of a memory map": lambda i: np.arange(64).reshape(8, 8)[i],
}


def same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    elif isinstance(theirs, collections.abc.Mapping):
        assert list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    elif isinstance(theirs, collections.abc.Sequence) and not isinstance(theirs, str):
        assert len(ours) == len(theirs) and all(same(own, their) for own, their in zip(ours, theirs))
    else:
        assert ours == theirs
    return True


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", STRUCTURES)
def test_batches_have_the_classes_of_samples(name, num_workers):
    data = Own(STRUCTURES[name])
    ours, theirs = (list(loader) for loader in (DataLoader(data, batch_size=3, num_workers=num_workers), TorchLoader(data, batch_size=3)))
    assert same(ours, theirs)


def test_a_batch_has_what_else_its_first_sample_has():
    def noted(index):
        sample = Fields(a=index)
        sample.note = f"of {index}"
        return sample

    ours, theirs = (list(loader(Own(noted), batch_size=3)) for loader in (DataLoader, TorchLoader))
    assert [batch.note for batch in ours] == [batch.note for batch in theirs] == ["of 0", "of 3", "of 6"]
    numpys = next(iter(DataLoader(Own(noted), batch_size=3, output="numpy")))
    assert type(numpys) is Fields and numpys["a"].tolist() == [0, 1, 2]
    # The first sample's class is the batch's, whatever the others have.
    mixed = next(iter(DataLoader(Own(lambda i: Fields(a=i) if i else {"a": i}), batch_size=3)))
    assert type(mixed) is dict and mixed["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("sample", "error"),
    [
        (lambda i: np.array([["a"]]), TypeError),
        (lambda i: object(), TypeError),
        (lambda i: np.array([object()]), TypeError),
        (lambda i: {1, 2}, TypeError),
        (lambda i: ["X"] * (i + 1), pinfeed.CollateError),
        (lambda i: ["X"] * (3 - i), pinfeed.CollateError),
        (lambda i: torch.eye(2).to_sparse(), TypeError),
        (lambda i: torch.ones(2, dtype=torch.complex64), TypeError),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_that_cannot_be_a_batch_say_what_to_do(sample, error, num_workers):
    with pytest.raises(error, match="collate_fn"):
        next(iter(DataLoader(Own(sample), batch_size=2, num_workers=num_workers)))


@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_nested_tensors_go_through_a_collate_fn():
    data = [torch.nested.nested_tensor([torch.randn(5)]) for _ in range(4)]
    loader = DataLoader(data, num_workers=2, collate_fn=lambda samples: [sample.clone() for sample in samples])
    assert all(torch.equal(batch[0].unbind()[0], sample.unbind()[0]) for batch, sample in zip(loader, data, strict=True))
    with pytest.raises(TypeError, match="a nested tensor has no place .* collate_fn"):
        next(iter(DataLoader(data)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_in_ordinary_memory(num_workers):
    for sample in (torch.zeros(1), np.zeros(1)):
        batch = next(iter(DataLoader([sample] * 4, batch_size=2, num_workers=num_workers)))
        assert not batch.is_shared() and not batch.is_pinned()


def test_dicts_and_named_tuples_within_each_other():
    Batch = collections.namedtuple("Batch", ["data", "label", "tensor"])
    Data = collections.namedtuple("Data", ["positive", "negative"])
    loader = DataLoader(Own(lambda i: Batch(Data(i, -i), str(i), torch.ones(3) * i), 4), batch_size=2, num_workers=1)
    for place, batch in enumerate(loader):
        assert type(batch) is Batch and type(batch.data) is Data and batch.label == [str(2 * place), str(2 * place + 1)]
        assert batch.data.positive.tolist() == (-batch.data.negative).tolist() == [2 * place, 2 * place + 1]
    loader = DataLoader(Own(lambda i: {"tensor": torch.empty(4, 2).fill_(i), "more": {"number": i}}, 4), batch_size=2)
    for place, batch in enumerate(loader):
        assert set(batch) == {"tensor", "more"} and set(batch["more"]) == {"number"}
        assert batch["tensor"].shape == (2, 4, 2) and (batch["tensor"][1] == 2 * place + 1).all()
        assert batch["more"]["number"].tolist() == [2 * place, 2 * place + 1]


# Errors


@pytest.mark.parametrize(("count", "num_workers"), [(100, 0), (41, 4)])
def test_each_batch_that_fails_is_one_error(count, num_workers):
    class Unfinished(torch.utils.data.Dataset):
        def __len__(self):
            return count

    iterator = iter(DataLoader(Unfinished(), batch_size=2, shuffle=True, num_workers=num_workers))
    errors = 0
    while True:
        try:
            next(iterator)
        except NotImplementedError:
            errors += 1
        except StopIteration:
            break
    assert errors == -(-count // 2)


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("segfault.py", -signal.SIGSEGV, "Segmentation fault"),  # the worker is a thread: faulthandler names its line
        ("few_files.py", 0, ""),
        ("loop_fails.py", 1, "RuntimeError: the loop's own"),
        ("left_early.py", 0, ""),
    ],
)
def test_programs_that_end_badly(run_program, program, status, said):
    got, out, err = run_program(program)
    assert got == status and said in err, err
    assert said or err == ""
    assert out == ("done\n" if status == 0 else "")


# Workers


def test_workers_end_though_the_epoch_does_not(table):
    before = threads()
    iterator = iter(DataLoader(table, batch_size=2, num_workers=4))
    for _ in range(10):
        next(iterator)
    del iterator
    deadline = time.monotonic() + 60
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() <= before


def test_workers_are_threads_of_this_process_with_the_data_set_itself():
    told = []

    class Data(Own):
        start = 0

    def function(index):
        told.append((torch.utils.data.get_worker_info(), threading.get_ident()))
        return data.start

    data = Data(function, 40)
    loader = DataLoader(data, batch_size=2, num_workers=2)
    for start in range(3):
        data.start = start  # (torch's workers have a copy, and persistent ones keep it)
        assert torch.cat(list(loader)).tolist() == [start] * 40
    assert {info for info, _ in told} == {None}
    assert threading.get_ident() not in {ident for _, ident in told}


def test_samples_have_seeds_of_their_own_on_any_number_of_workers():
    def seeds(seed, num_workers):
        loader = DataLoader(Own(lambda _: pinfeed.sample_seed() >> 1, 30), batch_size=3, num_workers=num_workers, seed=seed)
        return [torch.cat(list(loader)).tolist() for _ in range(2)]

    first = seeds(42, 6)
    assert first == seeds(42, 0) and first != seeds(43, 6)
    assert len({seed for epoch in first for seed in epoch}) == 60


def test_torch_computes_on_a_workers_thread():
    ones = torch.ones(1, 1, 24_000)
    torch.nn.functional.conv1d(ones, torch.ones(1, 1, 2))
    loader = DataLoader(Own(lambda _: torch.nn.functional.conv1d(ones, torch.ones(1, 1, 2)), 4), num_workers=2)
    assert [batch.shape for batch in loader] == [(1, 1, 1, 23_999)] * 4
