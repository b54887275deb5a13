"""Orders of samples, under torch's names. Each is a function of seed, epoch and position: the same on any number of workers and ranks.

``DataLoader(sampler=...)`` takes one of these, or any sequence of indices.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Sequence, Sized

from . import _pinfeed
from ._errors import OptionError

__all__ = ["RandomSampler", "Sampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler"]


def _refuse(generator: None) -> None:
    if generator is not None:
        raise OptionError("generator has no meaning here: the order follows from `seed=`, an int, and the epoch")


def _indices(indices: Iterable[int]) -> list[int]:
    listed = [int(index) for index in indices]
    if listed and min(listed) < 0:
        raise OptionError(f"{min(listed)} is no index of a sample: they are from 0 on")
    return listed


def _number(num_samples: int) -> int:
    if not isinstance(num_samples, int) or num_samples < 1:
        raise OptionError(f"num_samples={num_samples!r}: it is a positive number of samples")
    return num_samples


class Sampler:
    """An order. Iterating over it gives the indices of epoch 0."""

    _sampler: _pinfeed._Sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices(0))

    def indices(self, epoch: int) -> list[int]:
        """The indices of an epoch, in their order."""
        return self._sampler.indices(epoch)


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    def __init__(self, data_source: Sized) -> None:
        self._sampler = _pinfeed._Sampler.sequential(len(data_source))


class RandomSampler(Sampler):
    """All samples in a random order, or ``num_samples`` of them, or with replacement."""

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: None = None, *, seed: int = 0
    ) -> None:
        _refuse(generator)
        if num_samples is not None:
            _number(num_samples)
        self._sampler = _pinfeed._Sampler.random(len(data_source), seed, replacement, num_samples)


class SubsetRandomSampler(Sampler):
    """These samples, in a random order."""

    def __init__(self, indices: Sequence[int], generator: None = None, *, seed: int = 0) -> None:
        _refuse(generator)
        self._sampler = _pinfeed._Sampler.subset(_indices(indices), seed)


class WeightedRandomSampler(Sampler):
    """``num_samples`` samples, drawn by weight."""

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: None = None, *, seed: int = 0
    ) -> None:
        _refuse(generator)
        self._sampler = _pinfeed._Sampler.weighted([float(weight) for weight in weights], _number(num_samples), replacement, seed)
