"""Data sets."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator, Sequence

from . import _pinfeed
from ._errors import OptionError
from .transforms import Compose, _Step

__all__ = [
    "ConcatDataset",
    "Dataset",
    "ImageFolder",
    "MappedDataset",
    "OwnDataset",
    "Subset",
    "TensorDataset",
    "TokenDataset",
    "WebDataset",
    "npy",
    "npz",
    "random_split",
    "safetensors",
]


class Dataset:
    """A data set: ``len(dataset)``, and ``dataset[index]`` for a look at one sample.

    A loader reads it with threads that need no Python. Data sets pickle by the arguments that they were made with.
    """

    _source: _pinfeed._Source
    # Whether loading a sample runs Python of the program's.
    _runs_python = False
    _arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        made = super().__new__(cls)
        made._arguments = (arguments, options)
        return made

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        """The sample at ``index``, as functions of yours see it: arrays of torch's where that is installed, or of NumPy's. Random
        transforms draw what they would in epoch 0 of a loader with ``seed=0`` and no shuffling; but within a sample of a data set of yours,
        they follow from that sample's seed (``pinfeed.sample_seed()``), and so differ in each epoch."""
        seed = _pinfeed.sample_seed()
        return self._source.get(index) if seed is None else self._source.get(index, seed=seed)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])

    def __reduce__(self) -> Any:
        arguments, options = self._arguments
        return _made, (type(self), arguments, options)

    def map(self, function: Callable[[Any], Any], *, output: str = "auto") -> MappedDataset:
        """Each sample becomes ``function(sample)``, which is Python and runs on the loader's threads, one at a time under the GIL.
        ``output`` says what its arrays are: "torch", "numpy" or "auto"."""
        return MappedDataset(self, function, output=output)


def _made(cls: type, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return cls(*arguments, **options)


def _is_native(dataset: Any) -> bool:
    """Whether it is one of pinfeed's, and no subclass of the program's that gives other samples."""
    if not isinstance(dataset, Dataset) or not hasattr(dataset, "_source"):
        return False
    methods = (type(dataset).__getitem__, type(dataset).__len__)
    return all(method.__module__.startswith("pinfeed.") for method in methods)


def _unwrapped(dataset: Any) -> Any:
    """A subset of torch's (``random_split`` makes them) of a data set of pinfeed's, as one of pinfeed's: it is loaded without Python."""
    if f"{type(dataset).__module__}.{type(dataset).__name__}" == "torch.utils.data.dataset.Subset":
        whole = _unwrapped(dataset.dataset)
        if _is_native(whole):
            return Subset(whole, dataset.indices)
    return dataset


def as_dataset(dataset: Any, at_once: int = 1) -> Dataset:
    """The data set itself if it is one of pinfeed's; otherwise any object with ``__len__`` and ``__getitem__``."""
    dataset = _unwrapped(dataset)
    if _is_native(dataset):
        native: Dataset = dataset
        return native
    return OwnDataset(dataset, at_once=at_once)


class OwnDataset(Dataset):
    """A data set of your own: any object with ``__len__`` and ``__getitem__``, as torch's map-style data sets. ``DataLoader`` makes it.

    ``__getitem__`` runs on the loader's threads, several at once: where it waits (files, sockets) or computes without the GIL (NumPy,
    Pillow, OpenCV), they work side by side. If there is a ``__getitems__``, it is asked for up to ``at_once`` samples.
    """

    _runs_python = True

    def __init__(self, dataset: Any, *, at_once: int = 1) -> None:
        for needed in ("__len__", "__getitem__"):
            if not hasattr(dataset, needed):
                raise OptionError(f"dataset={dataset!r}: it has no {needed}")
        self.dataset = dataset
        self._source = _pinfeed.own_source(dataset, at_once if hasattr(dataset, "__getitems__") else 1)


class MappedDataset(Dataset):
    """A data set whose samples a function changes: ``Dataset.map`` makes it."""

    _runs_python = True

    def __init__(self, dataset: Any, function: Callable[[Any], Any], *, output: str = "auto") -> None:
        if not callable(function):
            raise OptionError(f"map: {function!r} cannot be called")
        self.dataset = as_dataset(dataset)
        self._source = _pinfeed.changed_source(self.dataset._source, function, False, output)


def _explained(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function. If it is torchvision's and refuses the array that it gets, the error says what helps."""
    if not type(function).__module__.startswith("torchvision."):
        return function

    def explained(picture: Any) -> Any:
        try:
            return function(picture)
        except TypeError as error:
            error.add_note(
                "A function is given a picture as a NumPy array of shape [height, width, 3]. Begin with torchvision's ToPILImage(), or use "
                "pinfeed.transforms, which has the same names and runs without Python."
            )
            raise

    return explained


def _transform(transform: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """The transform of ours, and the function that follows it."""
    if transform is None:
        return None, None
    if isinstance(transform, Compose):
        return transform._native, None
    if isinstance(transform, _Step):
        return Compose([transform])._native, None
    if callable(transform):
        return None, _explained(transform)
    raise OptionError(f"transform={transform!r}: it is one of pinfeed.transforms, or a function")


class ImageFolder(Dataset):
    """Pictures in class folders, ``root/class/picture.jpg``, as torchvision's: samples are (picture, label). ``root`` may be in a bucket:
    ``"s3://bucket/train"``, ``"gs://.."``, ``"az://.."``.

    ``transform`` is one of ``pinfeed.transforms``, which runs without Python; or a function of yours, which gets the decoded picture as a
    NumPy array of shape (height, width, 3), and runs under the GIL. ``classes`` gives the labels' order, for a folder that lacks some.
    ``exif_orientation`` turns pictures as their cameras were held; torchvision does not. ``decode`` says where JPEG files are decoded if
    batches go to a GPU: ``"cpu"``, ``"device"`` (NVIDIA's nvJPEG, if it is installed), or ``"both"``, which share them as fast as each is.
    """

    _folder: _pinfeed._Folder

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        target_transform: None = None,
        *,
        classes: Sequence[str] | None = None,
        exif_orientation: bool = False,
        decode: str = "cpu",
    ) -> None:
        if target_transform is not None:
            raise OptionError("target_transform: map the samples instead: ImageFolder(root).map(lambda sample: (sample[0], f(sample[1])))")
        self.root = os.fspath(root)
        self.transform = transform
        folder = _pinfeed._Folder.open(self.root)
        self._of(folder if classes is None else folder.with_classes(list(classes)), transform, exif_orientation, decode)

    def _of(self, folder: _pinfeed._Folder, transform: Any, exif_orientation: bool, decode: str) -> None:
        native, function = _transform(transform)
        self._folder = folder
        self._source = folder.source(native, exif_orientation, decode)
        if function is not None:
            self._runs_python = True
            self._source = _pinfeed.changed_source(self._source, function, True, "numpy")

    @classmethod
    def from_list(
        cls,
        files: Sequence[tuple[str | os.PathLike[str], str | int]],
        transform: Any = None,
        *,
        exif_orientation: bool = False,
        decode: str = "cpu",
    ) -> ImageFolder:
        """Pictures of a list: (path, class), where a class is a name, or a number, which is then the label."""
        return ImageList([(os.fspath(path), label) for path, label in files], transform, exif_orientation=exif_orientation, decode=decode)

    @property
    def classes(self) -> list[str]:
        """The classes' names, which the labels index."""
        return self._folder.classes()

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """The samples' labels."""
        return self._folder.labels()

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of each sample; of a bucket, with its key below the URL."""
        return [(os.fspath(path), label) for path, label in zip(self._folder.paths(), self.targets)]

    imgs = samples


class ImageList(ImageFolder):
    """Pictures of a list: ``ImageFolder.from_list`` makes it."""

    def __init__(
        self, files: Sequence[tuple[str, str | int]], transform: Any = None, *, exif_orientation: bool = False, decode: str = "cpu"
    ) -> None:
        self.root = ""
        self.transform = transform
        self._of(_pinfeed._Folder.from_list([(path, str(label)) for path, label in files]), transform, exif_orientation, decode)


class TensorDataset(Dataset):
    """Rows of arrays: sample ``i`` is row ``i`` of each. NumPy arrays (memory-mapped ones, too), torch tensors, what ``pinfeed.npy`` opens,
    and anything else with a buffer. Nothing is copied, so do not write to the arrays while a loader reads them."""

    def __init__(self, *arrays: Any) -> None:
        self.tensors = arrays
        self._source = _pinfeed.table_source(list(arrays))

    def __getitem__(self, index: Any) -> Any:
        """The sample at ``index``; or those of a slice or a list of indices, as one batch, which is a copy."""
        if not isinstance(index, (slice, list)):
            return super().__getitem__(index)
        places = range(len(self))
        chosen = list(places[index]) if isinstance(index, slice) else [places[place] for place in index]
        if not chosen:
            return tuple(column[:0] for column in self[:1]) if len(self) else tuple(column[:0] for column in self.tensors)
        from ._loader import DataLoader, World

        return tuple(next(iter(DataLoader(self, len(chosen), sampler=chosen, world=World(0, 1)))))


def npy(path: str | os.PathLike[str]) -> Any:
    """The array of an ``.npy`` file, mapped into memory, for ``TensorDataset``."""
    return _pinfeed.npy(os.fspath(path))


def npz(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of an ``.npz`` file, by name, for ``TensorDataset``."""
    return dict(_pinfeed.named_arrays(os.fspath(path), "npz"))


def safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tensors of a safetensors file, mapped into memory, by name, for ``TensorDataset``."""
    return dict(_pinfeed.named_arrays(os.fspath(path), "safetensors"))


class TokenDataset(Dataset):
    """Windows of a file of tokens, mapped into memory: samples are (inputs, targets), ``length`` tokens each, as ``int64``; the targets are
    the inputs one token later.

    ``format`` is ``"raw"`` (nanoGPT's ``train.bin``), ``"llm.c"`` or ``"megatron"`` (of the ``.bin`` and the ``.idx``, give either).
    ``stride`` is how many tokens after the one before a window begins: ``length`` by default.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        length: int,
        *,
        dtype: str = "uint16",
        format: str = "raw",
        stride: int | None = None,
    ) -> None:
        self.path = os.fspath(path)
        name = getattr(dtype, "__name__", None) or str(dtype)
        self._source = _pinfeed.token_windows(self.path, format, name.removeprefix("torch."), length, stride)


class WebDataset(Dataset):
    """WebDataset tar shards, with an index: ``"train/imagenet-{000000..000146}.tar"``, in one global order, resumed exactly.

    Samples are tuples of ``fields``. A field is an extension, or several of which each sample has one (``"jpg;png"``). It becomes a picture
    (jpg, png, webp, ..), which ``transform`` changes; a number (cls, id); a string (txt, or ``"__key__"``); what ``json.loads`` makes of it
    (json); an array (npy); otherwise ``bytes``. With ``shuffle=True``, a loader reads whole parts of shards, several at once, and mixes them.
    ``keep_index`` is a folder for the shards' index, so that the next run need not read their headers.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        fields: Sequence[str] = ("jpg;jpeg;png;webp", "cls"),
        transform: Any = None,
        *,
        keep_index: str | os.PathLike[str] | None = None,
        skip_incomplete: bool = False,
    ) -> None:
        native, function = _transform(transform)
        if function is not None:
            raise OptionError("transform: it is one of pinfeed.transforms here; `WebDataset(..).map(function)` gets the whole sample")
        if isinstance(fields, str):
            raise OptionError(f"fields={fields!r}: it is a list or tuple of fields")
        keep = None if keep_index is None else os.fspath(keep_index)
        self._source = _pinfeed.shard_source(os.fspath(url), list(fields), native, keep, skip_incomplete)


class Subset(Dataset):
    """Samples of a data set, by their indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = as_dataset(dataset)
        self.indices = [int(index) for index in indices]
        self._runs_python = self.dataset._runs_python
        self._source = self.dataset._source.subset(self.indices)

    def __getitem__(self, index: Any) -> Any:
        """The sample at ``index``; or those of a slice or a list of indices, if the data set has several at once (``TensorDataset``)."""
        whole: Any = self.dataset
        if isinstance(index, slice):
            return whole[self.indices[index]]
        if isinstance(index, list):
            return whole[[self.indices[place] for place in index]]
        return super().__getitem__(index)


class ConcatDataset(Dataset):
    """Data sets, one after the other."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = [as_dataset(dataset) for dataset in datasets]
        if not self.datasets:
            raise OptionError("ConcatDataset: the list is empty")
        self._runs_python = any(dataset._runs_python for dataset in self.datasets)
        self._source = _pinfeed._Source.concat([dataset._source for dataset in self.datasets])


def random_split(dataset: Any, lengths: Sequence[float], generator: None = None, *, seed: int = 0) -> list[Subset]:
    """Random parts of a data set, of these numbers of samples, or shares that add up to 1. ``seed`` says which samples."""
    if generator is not None:
        raise OptionError("random_split: generator has no meaning here: `seed=17` says which samples")
    whole = as_dataset(dataset)
    count = len(whole)
    sizes = [int(length) for length in lengths]
    if any(isinstance(length, float) for length in lengths):
        if abs(sum(lengths) - 1) > 1e-9 or min(lengths) < 0:
            raise OptionError(f"random_split: the shares {list(lengths)} add up to {sum(lengths)}, and not to 1")
        sizes = [int(count * share) for share in lengths]
        for place in range(count - sum(sizes)):
            sizes[place % len(sizes)] += 1
    if min(sizes, default=0) < 0:
        raise OptionError(f"random_split: the lengths {list(lengths)} are not all from 0 on")
    if sum(sizes) != count:
        raise OptionError(f"random_split: the lengths {list(lengths)} add up to {sum(sizes)}, and there are {count} samples")
    order = _pinfeed._Sampler.random(count, seed, False, None).indices(0)
    parts, begin = [], 0
    for size in sizes:
        parts.append(Subset(whole, order[begin : begin + size]))
        begin += size
    return parts
