"""Parquet files: what their columns become in a batch."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Mapping, Sequence

from . import _pinfeed
from ._datasets import Dataset, _transform
from ._errors import OptionError

_NUMBER = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_DTYPES = (
    "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
)
# (key, columns, what they become, type, dimensions, what is taken in place of nulls)
_Field = tuple[str, list[str], str, "str | None", int, list[Any]]


def _type_of(kind: str) -> tuple[str, int]:
    """A column's type without its lists, and how many lists it lies in."""
    depth = 0
    while kind.startswith("list<") and kind.endswith(">"):
        kind, depth = kind[5:-1], depth + 1
    return kind, depth


def _element(kind: str) -> str | None:
    """The type of an array's elements; ``None``: they are no numbers."""
    if _NUMBER.fullmatch(kind):
        return kind
    if kind.startswith(("date32", "time32", "time64", "timestamp")):
        return "int64"
    return "float64" if kind.startswith("decimal") else None


class Parquet(Dataset):
    """Rows of Parquet files, as pyarrow, ``datasets``, Spark, DuckDB and Polars write them: a file, a folder with all ``.parquet`` in it and
    below, or a pattern (``"train-*.parquet"``, ``"data/**/part-?.parquet"``), in one global order, resumed exactly.

    Samples are dicts, by the names of ``columns``: of all by default; but what is not chosen is not read. A field of a structure is
    ``"structure.field"``. With ``as_tuple=True``, they are tuples: ``for images, labels in loader``.

    A column becomes a tensor of its own type (``bool``, ``int8`` .. ``float64``; dates and times as ``int64`` in the column's unit, decimals as
    ``float64``), a string, ``bytes``, or for a list an array, whose length is to be the same in a batch, or else a ``collate_fn`` makes it so.
    Pictures are structures of ``bytes`` and ``path``, as the Hugging Face hub has them, and columns of bytes that ``images`` names: ``transform``,
    one of ``pinfeed.transforms``, changes them. Folders called ``year=2024`` are a column, too.

    ``columns``
        Names; or a dict, whose values are names, or lists of names of numbers that make one array: ``{"x": ["size", "rooms"], "y": "price"}``.
    ``filters``
        Conditions that a row has to meet, as pyarrow's: ``[("score", ">=", 0.5), ("lang", "in", ["de", "en"]), ("text", "is not", None)]``.
        Row groups are left out by their statistics.
    ``dtype``
        The types of arrays: ``{"x": "float32"}``. A value that does not fit is an error.
    ``nulls``
        What is taken where a column has no value: ``{"age": -1, "caption": ""}``. Otherwise, that is an error, which names file, column and row.
    ``block_bytes``
        How much is read at once, about, and shuffled by: 8 MiB, or less where the files are small.

    With ``shuffle=True``, a loader reads whole row groups, or parts of large ones, many at once, and mixes them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        transform: Any = None,
        *,
        filters: Sequence[tuple[str, str, Any]] | None = None,
        as_tuple: bool = False,
        images: Sequence[str] | None = None,
        dtype: Mapping[str, Any] | None = None,
        nulls: Mapping[str, Any] | None = None,
        block_bytes: int | None = None,
    ) -> None:
        self._open(os.fspath(path), None, columns, transform, filters, as_tuple, images, dtype, nulls, block_bytes)

    @classmethod
    def hub(
        cls,
        name: str,
        split: str,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        transform: Any = None,
        *,
        config: str | None = None,
        filters: Sequence[tuple[str, str, Any]] | None = None,
        as_tuple: bool = False,
        images: Sequence[str] | None = None,
        dtype: Mapping[str, Any] | None = None,
        nulls: Mapping[str, Any] | None = None,
        block_bytes: int | None = None,
    ) -> Parquet:
        """A split of a data set of the Hugging Face hub, which is in the hub's cache already: ``Parquet.hub("ylecun/mnist", "train")``.

        Nothing is downloaded: if it is not there, the error has the command that does it.
        """
        return HubParquet(
            name, split, columns, transform, config=config, filters=filters, as_tuple=as_tuple, images=images, dtype=dtype, nulls=nulls,
            block_bytes=block_bytes,
        )

    def _open(
        self,
        path: str,
        hub: tuple[str, str | None] | None,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None,
        transform: Any,
        filters: Sequence[tuple[str, str, Any]] | None,
        as_tuple: bool,
        images: Sequence[str] | None,
        dtype: Mapping[str, Any] | None,
        nulls: Mapping[str, Any] | None,
        block_bytes: int | None,
    ) -> None:
        native, function = _transform(transform)
        if function is not None:
            raise OptionError("transform: it is one of pinfeed.transforms here; `Parquet(..).map(function)` gets the whole sample")
        wanted = _wanted(columns)
        names = None if wanted is None else [name for names in wanted.values() for name in names]
        self.path = path
        self.transform = transform
        self._files = _pinfeed._Parquet.open(path, names, _filters(filters), block_bytes, hub)
        fields = _Fields(self._files, images, dict(dtype or {}), dict(nulls or {})).all(wanted)
        self._fields = fields
        if transform is not None and not any(field[2] == "picture" for field in fields):
            raise OptionError(
                "transform: no column has pictures, which are structures of bytes and path, as `datasets` writes them: images=[..] names columns of "
                f"bytes that are pictures; there are {', '.join(name for name, _ in self._files.columns())}"
            )
        self.column_names = [field[0] for field in fields]
        self._source = self._files.source(fields, as_tuple, native)

    def tensors(self, *, output: str = "auto") -> dict[str, Any]:
        """All rows, in memory: a dict of tensors, of columns and groups of numbers. All cores read them.

        That is for tables that fit: ``pinfeed.TensorDataset(*data.tensors().values())`` is many times as fast as taking its rows from files,
        epoch after epoch. ``output`` is as the loader's. A null is an error here.
        """
        for key, _, becomes, dtype, _, _ in self._fields:
            if becomes not in ("number", "group") or dtype in ("uint64", "bfloat16"):
                raise OptionError(f"tensors: {key!r} has no numbers, or uint64: choose others by columns=, or another type by dtype=")
        return {key: self._files.tensor(names, str(dtype), output) for key, names, _, dtype, _, _ in self._fields}

    @property
    def files(self) -> list[tuple[str, int]]:
        """The files' names below ``path``, and how many of their rows are samples."""
        return self._files.files()

    @property
    def features(self) -> dict[str, Any]:
        """What ``datasets`` says of the columns, if it wrote the files: ``data.features["label"]["names"]`` are the classes' names."""
        return _features(self._files)


class HubParquet(Parquet):
    """A data set of the Hugging Face hub: ``Parquet.hub`` makes it."""

    def __init__(
        self,
        name: str,
        split: str,
        columns: Any = None,
        transform: Any = None,
        *,
        config: str | None = None,
        filters: Any = None,
        as_tuple: bool = False,
        images: Any = None,
        dtype: Any = None,
        nulls: Any = None,
        block_bytes: int | None = None,
    ) -> None:
        self._open(name, (split, config), columns, transform, filters, as_tuple, images, dtype, nulls, block_bytes)


def _features(files: _pinfeed._Parquet) -> dict[str, Any]:
    said = files.metadata("huggingface")
    if said is None:
        return {}
    try:
        features = json.loads(said)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _wanted(columns: Any) -> dict[str, list[str]] | None:
    """The columns of each key."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise OptionError(f"columns={columns!r}: it is a list of names, or a dict of these")
    if isinstance(columns, Mapping):
        return {key: [names] if isinstance(names, str) else list(names) for key, names in columns.items()}
    names = list(columns)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"columns: {twice[0]!r} comes twice")
    return {name: [name] for name in names}


_OPERATORS = {"=": "==", "==": "==", ">": ">", ">=": ">=", "<": "<", "<=": "<=", "in": "in", "is not": "is not", "!=": "is not"}


def _filters(filters: Sequence[tuple[str, str, Any]] | None) -> list[tuple[str, str, list[Any]]]:
    """Conditions, with a list of what is compared."""
    conditions: list[tuple[str, str, list[Any]]] = []
    for condition in filters or []:
        if not isinstance(condition, (tuple, list)) or len(condition) != 3 or not isinstance(condition[0], str):
            raise OptionError(
                f"filters: {condition!r} is no condition: those are (column, operator, value), all of which a row has to meet. (pyarrow's lists of "
                "lists, any of which it may meet, have no counterpart: open the files once for each, and take a ConcatDataset)"
            )
        column, operator, value = condition
        known = _OPERATORS.get(operator)
        if known is None or (known == "is not" and value is not None):
            raise OptionError(
                f"filters: ({column!r}, {operator!r}, {value!r}): the operators are ==, >, >=, <, <= and in; (column, \"is not\", None) takes rows "
                "that have a value"
            )
        if known == "is not":
            conditions.append((column, known, []))
            continue
        values = [getattr(value, "item", lambda value=value: value)() for value in (value if known == "in" else [value])]
        for value in values:
            if not isinstance(value, (bool, int, float, str)):
                raise OptionError(f"filters: ({column!r}, {operator!r}, {value!r}): a column is compared with numbers, strings and bools")
        conditions.append((column, known, values))
    return conditions


class _Fields:
    """What columns become."""

    def __init__(self, files: _pinfeed._Parquet, images: Sequence[str] | None, dtype: dict[str, Any], nulls: dict[str, Any]) -> None:
        self.types = dict(files.columns())
        self.features = _features(files)
        if isinstance(images, str):
            raise OptionError(f"images={images!r}: it is a list of columns")
        self.images = images
        self.dtype = {key: self._dtype(key, name) for key, name in dtype.items()}
        self.nulls = nulls

    @staticmethod
    def _dtype(key: str, dtype: Any) -> str:
        name = str(getattr(dtype, "__name__", None) or dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise OptionError(f"dtype={{{key!r}: {dtype!r}}}: it is one of {', '.join(_DTYPES)}")
        return name

    def all(self, wanted: dict[str, list[str]] | None) -> list[_Field]:
        fields = []
        if wanted is None:
            seen = dict.fromkeys(self._whole(name) for name, kind in self.types.items() if _type_of(kind)[0] != "null")
            wanted = {name: [name] for name in seen}
        for key, names in wanted.items():
            if not isinstance(key, str):
                raise OptionError(f"columns: the key {key!r} is no str")
            fields += self._of(key, names)
        keys = [field[0] for field in fields]
        self._check("images", self.images or (), [name for field in fields if field[2] == "picture" for name in field[1]])
        self._check("dtype", self.dtype, keys)
        self._check("nulls", self.nulls, [name for field in fields for name in field[1]])
        if not fields:
            raise OptionError("columns: there is none")
        return fields

    @staticmethod
    def _check(option: str, given: Any, known: list[str]) -> None:
        for name in given:
            if name not in known:
                raise OptionError(f"{option}: {name!r} is none of {', '.join(known) or 'the columns that it is for, of which there is none'}")

    def _whole(self, name: str) -> str:
        """The column of pictures that a field is of; or the field itself."""
        column = name.rpartition(".")[0]
        return column if column and self._is_picture(column) else name

    def _is_picture(self, name: str) -> bool:
        """Whether a column has pictures."""
        is_structure = self.types.get(f"{name}.bytes") == "binary"
        if self.images is not None:
            if name in self.images and not is_structure and self.types.get(name, "binary") != "binary":
                raise OptionError(f"images: {name!r} is {self.types[name]}: a picture is in bytes (binary), or in a structure of bytes and path")
            return name in self.images and (is_structure or name in self.types)
        said = self.features.get(name, {})
        kind = said.get("_type", "Image") if isinstance(said, dict) else ""
        return is_structure and self.types.get(f"{name}.path") == "string" and kind == "Image"

    def _of(self, key: str, names: list[str]) -> list[_Field]:
        if len(names) == 1 and self._is_picture(names[0]):
            return [(key, names, "picture", None, 0, [self.nulls.get(names[0])])]
        found = [leaf for name in names for leaf in self.types if leaf == name or leaf.startswith(f"{name}.")]
        if len(names) == 1 and found == names:
            return [self._one(key, names[0])]
        if len(names) == 1 and key == names[0]:
            return [self._one(leaf, leaf) for leaf in found]  # the fields of a structure
        if not found:
            raise OptionError(f"columns: {key!r} has no column")
        return [self._group(key, found)]

    def _group(self, key: str, names: list[str]) -> _Field:
        for name in names:
            kind, depth = _type_of(self.types[name])
            if depth or _element(kind) is None:
                raise OptionError(
                    f"columns: {key!r} is of several columns, which are one array, and {name!r} is {self.types[name]}, and no number: give it a key of its own"
                )
        kinds = {_element(self.types[name]) for name in names}
        dtype = self.dtype.get(key)
        if dtype is None and len(kinds) > 1:
            raise OptionError(
                f"columns: {key!r} is of columns of several types ({', '.join(f'{name}: {self.types[name]}' for name in names)}): dtype={{{key!r}: "
                "\"float32\"}, or another, makes one array of them"
            )
        return key, names, "group", dtype or kinds.pop(), 1, [self.nulls.get(name) for name in names]

    def _one(self, key: str, name: str) -> _Field:
        kind, depth = _type_of(self.types[name])
        element = _element(kind)
        dtype = self.dtype.get(key, element)
        nulls = [self.nulls.get(name)]
        if kind.startswith("from the folders"):
            becomes = "folder"
        elif kind == "null":
            raise OptionError(f"columns: {name!r} has no value in any row: choose other columns")
        elif element is not None:
            becomes = "list" if depth else "number"
            if depth > 1 and dtype in ("uint64", "bfloat16"):
                raise OptionError(f"columns: {name!r} is {self.types[name]}: lists of lists have another dtype than {dtype}")
        elif kind == "string":
            becomes = "texts" if depth else "text"
        else:
            becomes = "many bytes" if depth else "bytes"
        if element is None and depth > 1:
            raise OptionError(f"columns: {name!r} is {self.types[name]}: of strings and bytes, lists are taken, and no lists of lists")
        if element is None and key in self.dtype:
            raise OptionError(f"dtype: {key!r} is {self.types[name]}, and no number")
        return key, [name], becomes, dtype, depth, nulls
