"""pinfeed: a data loader that keeps a GPU fed.

Your line, our line::

    from torch.utils.data import DataLoader              import pinfeed
    from torchvision import datasets, transforms as T

    data = datasets.ImageFolder("train", T.Compose([..]))  data = pinfeed.ImageFolder("train", pinfeed.transforms.train(224))
    loader = DataLoader(data, batch_size=256,              loader = pinfeed.DataLoader(data, batch_size=256,
                        shuffle=True, num_workers=16)                                  shuffle=True, num_workers=16)

Workers are threads of Rust's: nothing is forked or pickled, and what is not your own Python runs without the GIL.
``python -m pinfeed.doctor`` says what this machine can do.
"""

import atexit as _atexit

from . import _pinfeed, samplers, transforms
from ._datasets import (
    ConcatDataset,
    Dataset,
    ImageFolder,
    Subset,
    TensorDataset,
    TokenDataset,
    WebDataset,
    npy,
    npz,
    random_split,
    safetensors,
)
from ._errors import (
    ClosedError,
    CollateError,
    DataSetError,
    DeviceError,
    Error,
    FileError,
    ForkError,
    HostMemoryError,
    NotFoundError,
    OptionError,
    SampleError,
    SampleTimeout,
    StateError,
)
from ._iterable import WorkerInfo, get_worker_info
from ._loader import DataLoader, World
from ._parquet import Parquet
from ._pinfeed import Array, Stats, Tensor, sample_seed

__version__ = _pinfeed.__version__
__all__ = [
    "Array",
    "ClosedError",
    "CollateError",
    "ConcatDataset",
    "DataLoader",
    "DataSetError",
    "Dataset",
    "DeviceError",
    "Error",
    "FileError",
    "ForkError",
    "HostMemoryError",
    "ImageFolder",
    "NotFoundError",
    "OptionError",
    "Parquet",
    "SampleError",
    "SampleTimeout",
    "StateError",
    "Stats",
    "Tensor",
    "Subset",
    "TensorDataset",
    "TokenDataset",
    "WebDataset",
    "WorkerInfo",
    "World",
    "get_worker_info",
    "npy",
    "npz",
    "random_split",
    "safetensors",
    "sample_seed",
    "samplers",
    "transforms",
]

# Before the interpreter ends, the loaders do. (Modules that were imported before this one, such as threading, end later.)
_atexit.register(_pinfeed.at_exit)
