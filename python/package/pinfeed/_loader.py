"""The loader."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from contextlib import AbstractContextManager
from types import GenericAlias
from typing import Any, Callable, Iterator, Sequence

from . import _iterable, _pinfeed
from ._datasets import as_dataset
from ._errors import OptionError, StateError
from .samplers import Sampler, _indices

__all__ = ["DataLoader", "Iterator", "World"]

_REFUSED = {
    "persistent_workers": "workers are threads here, and live as long as the loader. Leave it out",
    "prefetch_factor": "it counts batches for each worker, and workers share each batch here. `prefetch=4` keeps four batches ahead, of all "
    "workers together",
    "multiprocessing_context": "workers are threads here, and nothing is forked, spawned or pickled. Leave it out",
    "worker_init_fn": "a worker needs no seed here (`pinfeed.sample_seed()` gives each sample its own), and what it has for itself belongs "
    "into a `threading.local()`. Leave it out",
    "generator": "the order and all random numbers follow from `seed=`, an int",
    "pin_memory_device": "`device=` says where batches go",
}
_NOTHING = {"persistent_workers": False, "pin_memory_device": ""}
# What a loader is made of. Set later, it would change nothing.
_FIXED = frozenset(
    "dataset batch_size num_workers drop_last collate_fn pin_memory timeout sampler batch_sampler in_order seed".split()
)


def _world_of_ray() -> tuple[int, int] | None:
    """(rank, number of ranks) in a worker of Ray Train's."""
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
    except (RuntimeError, AttributeError):  # not within the function that Ray Train was given
        return None
    return None if rank is None or size is None else (rank, size)


class World:
    """Which process this is, of how many: ``DataLoader(world=...)`` gives each its share of the samples.

    ``World.from_env()`` reads it from the launcher's variables: torchrun, Slurm, Open MPI, MPICH; a worker of Ray Train's asks Ray. A process
    that none of them started is rank 0 of 1.
    """

    def __init__(self, rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise OptionError(f"World: rank {rank} of {size}: ranks are from 0 to {size - 1}")
        self.rank = rank
        self.size = size

    @classmethod
    def from_env(cls) -> World:
        # (Ray first: its workers inherit the variables of what started Ray, such as Slurm's.)
        return cls(*(_world_of_ray() or _pinfeed.world_from_env()))

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, World) and (self.rank, self.size) == (other.rank, other.size)

    def __hash__(self) -> int:
        return hash((self.rank, self.size))


def _world(world: Any, is_iterable: bool) -> tuple[int, int] | None:
    if world is None:
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            if is_iterable:
                _iterable.warn_of_ranks()
                return None
            warnings.warn(
                "this is one of several processes (WORLD_SIZE), and the loader gives each of them all samples: world=\"env\" gives each its "
                "share, and world=pinfeed.World(0, 1) says that this is meant",
                stacklevel=3,
            )
        return None
    if world == "env":
        world = World.from_env()
    if not isinstance(world, World):
        raise OptionError(f"world={world!r}: it is \"env\", or a pinfeed.World(rank, size)")
    return world.rank, world.size


def _current(output: str) -> int:
    """The number of the CUDA device that the library of ``output`` uses now."""
    if output in ("auto", "torch") and importlib.util.find_spec("torch"):
        import torch

        current: int = torch.cuda.current_device()
        return current
    if output == "cupy":
        import cupy

        current = cupy.cuda.Device().id
        return current
    return 0


def _ordinal(device: Any, output: str) -> int | None:
    """The number of a CUDA device; ``None`` is the CPU."""
    if device is None:
        return None
    name = str(device)  # (torch's devices print as their names)
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return None
    if kind != "cuda" or (number and not number.isdecimal()):
        raise OptionError(f"device={device!r}: it is \"cuda\", \"cuda:1\", \"cpu\", or a torch.device of these")
    return int(number) if number else _current(output)


def _pins(pin_memory: bool) -> bool:
    if not pin_memory or importlib.util.find_spec("torch") is None:
        return pin_memory
    import torch

    if torch.cuda.is_available():
        return True
    warnings.warn("pin_memory=True, and torch has no GPU: batches stay in ordinary memory", stacklevel=3)
    return False


def _sampler(sampler: Any, shuffle: bool) -> Any:
    if sampler is None:
        return None
    if shuffle:
        raise OptionError("sampler and shuffle: the sampler says the order, so leave shuffle out")
    if isinstance(sampler, Sampler):
        return sampler._sampler
    if type(sampler).__name__ == "DistributedSampler":
        raise OptionError("sampler=DistributedSampler(...): world=\"env\" gives each rank its share, exactly, with shuffle=True as ever")
    if not hasattr(sampler, "__getitem__"):
        raise OptionError(
            f"sampler={sampler!r}: an order is a function of seed and epoch here, so that a run can be resumed. Take one of pinfeed.samplers "
            "(with torch's names and arguments), or a sequence of indices, such as list(sampler), which is the same in each epoch"
        )
    return _pinfeed._Sampler.listed(_indices(sampler))


def _batches(batch_sampler: Any) -> list[list[int]] | None:
    if batch_sampler is None:
        return None
    if not hasattr(batch_sampler, "__getitem__"):
        raise OptionError(
            f"batch_sampler={batch_sampler!r}: the batches are a function of seed and epoch here, so that a run can be resumed. Take batch_size "
            "with shuffle or one of pinfeed.samplers, or a sequence of lists of indices, such as list(batch_sampler), which is the same in each "
            "epoch"
        )
    return [_indices(batch) for batch in batch_sampler]


class DataLoader:
    """Loads batches of a data set, with threads. PyTorch's arguments, and what they lack.

    >>> loader = DataLoader(range(10), batch_size=4, output="numpy")
    >>> [batch.tolist() for batch in loader]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    As torch's:

    ``dataset``
        One of pinfeed's data sets, which run without Python, or any object with ``__len__`` and ``__getitem__``; or an iterable: torch's
        ``IterableDataset``, Hugging Face's, or any object with ``__iter__`` and no ``__getitem__``. One thread at a time pulls its items.
    ``batch_size``, ``shuffle``, ``drop_last``, ``in_order``
        The same. The order of ``shuffle`` follows from ``seed`` and the epoch.
    ``sampler``, ``batch_sampler``
        One of ``pinfeed.samplers``, or a sequence of indices; lists of indices.
    ``num_workers``
        Threads. 0 loads in the thread that asks; ``"auto"`` finds out how many are of use.
    ``collate_fn``
        Makes a batch of a list of samples. It runs on a worker, and what it returns comes as it is.
    ``timeout``
        Seconds that one sample may take.
    ``pin_memory``
        Batches come in page-locked memory of torch's. With ``device`` it is not needed.

    Its own:

    ``seed``
        Order and random transforms follow from it, the epoch and the position, on any number of workers.
    ``device``
        ``"cuda"``: batches come there, copied while the step before runs; ``depth`` of them are ahead.
    ``device_share``
        Of data sets with ``decode="both"``: which share of the pictures the GPU decodes, 0.0 to 1.0. By default it is measured in the first
        batches, and ``stats()`` says what it came to. Each rank measures its own: give it where ranks, or repeated runs, must decode alike.
    ``output``
        ``"torch"``, ``"numpy"``, ``"cupy"``, ``"jax"``, or ``"dlpack"``: a ``pinfeed.Tensor``, which any of them takes. ``"auto"`` is torch
        where it is installed, and otherwise NumPy, or with ``device`` ``"dlpack"``. On a GPU, torch gets memory of its own, and the others
        the loader's, without a copy.
    ``sweep``
        Whether the loader's memory on a GPU that CuPy, JAX and others let go of is made free with each batch, behind all work of the
        device. While CUDA graphs are captured, ``with loader.capturing():`` suspends it. With ``False``, ``loader.sweep()`` does it.
    ``tracks``
        Of shuffled data sets that are read in blocks (tar shards, Parquet): how many blocks are open at a time, over all ranks together. It is
        384 by default, and a multiple of the number of ranks, or several of them read each block.
    ``prefetch``
        How many batches are ahead, of all workers together. ``max_bytes_in_flight`` limits them in bytes.
    ``world``
        ``"env"`` or a ``World``: each rank gets its share of the samples, in equally many steps.
    ``last_batch``
        ``"partial"``, ``"drop"`` or ``"fill"``: what becomes of the last samples; ``drop_last`` is a short form.
    ``on_error``
        ``"fail"``, ``"replace"``, ``"skip"``, or ``("skip", 100)``: what becomes of a sample that fails, and how many may.
        ``bad_share=(0.01, 1000)`` limits them to 1 % once 1,000 samples were counted.
    ``retry``
        ``(3, 0.5)``: three more attempts, the first after half a second, for errors that may go away.
    ``prepare_next``
        The next epoch is loaded while the last batches of this one are used. By default, unless your own Python loads samples: that may
        change between two epochs (``dataset.difficulty = 2``).

    Each ``iter(loader)`` is the next epoch; ``set_epoch`` says which. Several may be alive. ``state_dict()`` says where the run stands,
    exactly, in mid-epoch. ``stats()`` says where the time went. ``with`` ends its threads; so does ``close()``, and the last reference.

    Exceptions of your own code come out as they are, with a note that names the sample. Later batches come all the same.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: None = None,
        multiprocessing_context: None = None,
        generator: None = None,
        *,
        prefetch_factor: None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int = 0,
        device: Any = None,
        depth: int = 2,
        output: str = "auto",
        sweep: bool = True,
        prefetch: int | None = None,
        max_bytes_in_flight: int | None = None,
        world: Any = None,
        last_batch: str | None = None,
        on_error: str | tuple[str, int] = "fail",
        bad_share: tuple[float, int] | None = None,
        device_share: float | None = None,
        tracks: int | None = None,
        retry: tuple[int, float] | None = None,
        prepare_next: bool | None = None,
    ) -> None:
        given = locals()
        for name, why in _REFUSED.items():
            if given[name] is not None and given[name] != _NOTHING.get(name):
                raise OptionError(f"{name}={given[name]!r} has no meaning here: {why}")
        if batch_size is None:
            raise OptionError("batch_size=None: batches are made here. Iterate over the data set itself for single samples")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise OptionError(f"batch_size={batch_size!r}: it is a positive number of samples")
        workers = None if num_workers == "auto" else num_workers
        if isinstance(workers, str) or (workers is not None and workers < 0):
            raise OptionError(f"num_workers={num_workers!r}: it is a number of threads, or \"auto\"")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise OptionError("batch_sampler: it says what each batch has, so leave batch_size, shuffle, sampler and drop_last out")
        if tracks is not None and (not shuffle or sampler is not None or batch_sampler is not None):
            raise OptionError(f"tracks={tracks!r}: it is of the order of shuffle=True")
        if collate_fn is not None and not callable(collate_fn):
            raise OptionError(f"collate_fn={collate_fn!r} cannot be called")
        if timeout and num_workers == 0:
            raise OptionError(f"timeout={timeout!r} needs workers: the thread that waits is the one that loads")
        if drop_last and last_batch not in (None, "drop"):
            raise OptionError(f"drop_last=True and last_batch={last_batch!r}: give one of them")
        source: _pinfeed._Source | _pinfeed._Iterable
        is_iterable = _iterable.is_iterable(dataset)
        if is_iterable:
            _iterable.check(dataset, given)
            source, runs_python = _pinfeed._Iterable(dataset), True
        else:
            at_once = max(1, batch_size // max(1, 2 * (workers if workers is not None else os.cpu_count() or 1)))
            own = as_dataset(dataset, at_once)
            source, runs_python = own._source, own._runs_python
        if prepare_next is None:
            prepare_next = not runs_python and collate_fn is None
        self._is_iterable = is_iterable
        self.dataset = dataset
        self.num_workers = num_workers
        self.drop_last = drop_last
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.in_order = in_order
        self.seed = seed
        self._loader = _pinfeed._Loader(
            source,
            {
                "batch_size": batch_size,
                "shuffle": bool(shuffle),
                "sampler": _sampler(sampler, bool(shuffle)),
                "batch_sampler": _batches(batch_sampler),
                "tracks": tracks,
                "num_workers": workers,
                "collate_fn": collate_fn,
                "pin_memory": _pins(bool(pin_memory)),
                "timeout": float(timeout),
                "in_order": in_order,
                "seed": seed,
                "device": _ordinal(device, output),
                "depth": depth,
                "output": output,
                "sweep": bool(sweep),
                "prefetch": prefetch,
                "max_bytes_in_flight": max_bytes_in_flight,
                "world": _world(world, is_iterable),
                "last_batch": last_batch or ("drop" if drop_last else "partial"),
                "on_error": (on_error, None) if isinstance(on_error, str) else tuple(on_error),
                "bad_share": bad_share,
                "device_share": device_share,
                "retry": retry,
                "prepare_next": prepare_next,
            },
        )

    @property
    def batch_size(self) -> int:
        """The number of samples in a batch of this rank; with a ``batch_sampler``, in the largest batch of epoch 0."""
        return self._loader.batch_size

    # (`DataLoader[Batch]`, as annotations of torch's have it. A type checker sees no parameter, which it would want in each of them.)
    __class_getitem__: Any = classmethod(GenericAlias)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_loader" in vars(self):
            raise OptionError(f"{name} cannot be set after the loader is made: make another one")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """The number of batches in an epoch, on this rank; it is the same on each.

        Of an iterable, as torch's: what follows from its ``len``, if it has one; otherwise a ``TypeError``.
        """
        if not self._is_iterable:
            return len(self._loader)
        count = len(self.dataset)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch."""
        return iter(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """The next ``iter`` is that of epoch ``epoch``. (Without it, epochs follow each other: 0, 1, 2, ...) If a state was loaded that
        stands within this epoch, it goes on there."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, in the epoch that was begun last: after the batches that you were given. Plain values, about 200 bytes, for
        ``torch.save`` or JSON."""
        state, epoch, position = self._loader.state()
        return {"version": 1, "epoch": epoch, "position": position, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next ``iter`` goes on where the state stands, on any number of workers and ranks.

        Of an iterable, each rank has a state of its own, and goes on from that, on as many ranks. If the iterable, or what its ``__iter__``
        returns, has ``state_dict`` and ``load_state_dict``, it goes there; otherwise, as many items as were given are pulled again and dropped.

        Raises ``StateError`` if it is of another data set, order, seed or batch size.
        """
        try:
            state = state_dict["state"]
        except (KeyError, TypeError):
            raise StateError(f"{state_dict!r} is no state of a pinfeed.DataLoader: those have the key 'state'") from None
        self._loader.load_state(state)

    def stats(self) -> _pinfeed.Stats:
        """Where the time of the epoch went that was begun last; ``print`` shows a table that says which knob to turn."""
        return self._loader.stats()

    def total_stats(self) -> _pinfeed.Stats:
        """The same of all epochs so far."""
        return self._loader.total_stats()

    def memory(self) -> dict[str, int]:
        """Bytes that the loader's device holds for batches, of all its loaders: page-locked memory of the host (``pinned_bytes``, of which
        ``pinned_idle_bytes`` are free to use), and memory of the GPU (``device_bytes``; ``device_held_bytes`` are in use, ``adrift_bytes`` wait
        for their last readers). Without ``device``, all are 0."""
        return self._loader.memory()

    def sweep(self) -> int:
        """Makes memory on the GPU free that batches were in, of which nothing is left: behind all work that the device has now. Returns the
        number of bytes. Nothing waits. It is what ``sweep=True`` does with each batch.

        It makes a capture of a CUDA graph fail that is under way, on whichever thread.
        """
        return self._loader.sweep()

    def capturing(self) -> AbstractContextManager[Any]:
        """``with loader.capturing():`` suspends sweeps, of all loaders of the device, while CUDA graphs are captured."""
        return self._loader.capture_guard()

    def close(self) -> None:
        """Ends the loader, its iterators and its threads. It waits for what workers are at, for a second at most."""
        self._loader.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a pinfeed.DataLoader has threads, and cannot be pickled: pickle its data set, and make the loader in the other process")

    def __repr__(self) -> str:
        closed = ", closed" if self._loader.is_closed else ""
        return f"<pinfeed.DataLoader of {type(self.dataset).__name__}, num_workers={self.num_workers!r}{closed}>"
