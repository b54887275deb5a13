"""The library's exceptions. What your own code raises (a data set, a transform, a ``collate_fn``) comes out as it is, with a note that
says which sample it was."""


class Error(Exception):
    """Anything that goes wrong in pinfeed."""

    __module__ = "pinfeed"


class OptionError(Error, ValueError):
    """An argument is refused; the message says why, and what would be right."""

    __module__ = "pinfeed"


class SampleError(Error, RuntimeError):
    """A sample failed to load. Later batches come.

    ``index`` is the sample's index in the data set, ``batch`` the batch's place in the epoch, ``epoch`` the epoch's number.
    """

    __module__ = "pinfeed"
    index: int | None = None
    batch: int | None = None
    epoch: int | None = None


class SampleTimeout(Error, TimeoutError):
    """A sample took longer than ``timeout``. Later batches come."""

    __module__ = "pinfeed"


class CollateError(Error, ValueError):
    """Samples do not fit into one batch."""

    __module__ = "pinfeed"


class DataSetError(Error):
    """A folder, a file or a store has not what a data set needs."""

    __module__ = "pinfeed"


class FileError(DataSetError, OSError):
    """A file or a folder cannot be read."""

    __module__ = "pinfeed"


class NotFoundError(FileError, FileNotFoundError):
    """A file or a folder is not there."""

    __module__ = "pinfeed"


class StateError(Error, ValueError):
    """``load_state_dict`` was given the state of another run, or none."""

    __module__ = "pinfeed"


class DeviceError(Error, RuntimeError):
    """A GPU cannot be used, or failed."""

    __module__ = "pinfeed"


class HostMemoryError(Error, MemoryError):
    """A batch does not fit into memory."""

    __module__ = "pinfeed"


class ForkError(Error, RuntimeError):
    """A loader was used in a process that was forked from its own. Start processes by ``spawn``."""

    __module__ = "pinfeed"


class ClosedError(Error, RuntimeError):
    """The loader was closed."""

    __module__ = "pinfeed"
