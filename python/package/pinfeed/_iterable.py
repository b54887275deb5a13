"""Iterables: data sets of the program's own that have no index."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _pinfeed
from ._datasets import Dataset
from ._errors import OptionError


class WorkerInfo(NamedTuple):
    """Which part of an iterable is asked for: ``get_worker_info()`` gives it."""

    rank: int
    """Which process this is, of those that load different batches."""
    world_size: int
    """How many there are."""
    id: int
    """Always 0: the workers of a process share its one iterator, so nothing is split over them, or comes twice."""
    num_workers: int
    """Always 1."""
    seed: int
    """A number for generators of your own: it follows from the loader's seed, the epoch and the rank."""
    epoch: int
    """The epoch's number."""
    dataset: Any
    """The iterable."""


def get_worker_info() -> WorkerInfo | None:
    """Within an iterable's ``__iter__`` or ``__next__``: its rank, of how many, a seed and the epoch. ``None`` elsewhere.

    It has what ``torch.utils.data.get_worker_info()`` has, with an ``id`` of 0 of 1, and the rank beside it::

        def __iter__(self):
            info = pinfeed.get_worker_info()
            for path in self.paths[info.rank :: info.world_size]:
                yield from records(path)
    """
    told = _pinfeed.worker_info()
    if told is None:
        return None
    rank, ranks, epoch, seed, dataset = told
    return WorkerInfo(rank, ranks, 0, 1, seed, epoch, dataset)


def is_iterable(dataset: Any) -> bool:
    """Whether a data set is iterated, and not indexed."""
    if isinstance(dataset, Dataset):
        return False
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(dataset, torch.IterableDataset):
        return True  # (it has a `__getitem__`, which fails)
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def check(dataset: Any, given: dict[str, Any]) -> None:
    """Refuses what means nothing without an index."""
    if isinstance(dataset, Iterator) and type(dataset).__module__ in ("builtins", "itertools", "_io"):
        raise OptionError(
            f"dataset={dataset!r}: an iterator gives its items once, and a loader has several epochs: give it an object whose __iter__ begins anew"
        )
    for name, nothing, instead in (
        ("shuffle", False, "an iterable says its order itself: shuffle in its __iter__, by the `seed` and `epoch` of pinfeed.get_worker_info()"),
        ("sampler", None, "an iterable has no index"),
        ("batch_sampler", None, "an iterable has no index"),
        ("in_order", True, "a run goes on where its iterable stood, so there can be no gaps"),
    ):
        if given[name] != nothing and given[name] is not None:
            raise OptionError(f"{name}={given[name]!r}: {instead}")
    if given["last_batch"] == "fill":
        raise OptionError("last_batch=\"fill\": an iterable has no other samples for a batch's empty places")
    on_error = given["on_error"]
    if (on_error if isinstance(on_error, str) else on_error[0]) == "replace":
        raise OptionError("on_error=\"replace\": an iterable has no other sample for the place of a bad one: \"skip\" leaves it out")


def warn_of_ranks() -> None:
    """One of several processes has a loader that knows nothing of the others."""
    warnings.warn(
        "this is one of several processes (WORLD_SIZE), and an iterable splits itself: with world=\"env\", pinfeed.get_worker_info() tells it which "
        "rank it is of. If it does so in another way, world=pinfeed.World(0, 1) says that this is meant",
        stacklevel=4,
    )
