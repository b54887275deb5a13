"""torchvision's transforms, by name, run by the loader's threads while they decode: each picture is decoded, cropped, resized, flipped
and normalized in one step, straight into its batch.

Arguments and values are torchvision's (v1, on PIL images). Pictures become what the last transforms say:

==========================================  =======================================================
nothing, or ``PILToTensor`` left out         ``uint8`` of shape ``[n, height, width, 3]``
``ToTensor()``                               ``float32`` of shape ``[n, 3, height, width]``, 0 to 1
``ToTensor(), Normalize(mean, std)``         ``float32`` of shape ``[n, 3, height, width]``, normalized
==========================================  =======================================================

Random numbers come from the loader's ``seed``: they are the same on any number of workers, and others than torchvision's.
"""

from __future__ import annotations

from typing import Any, Sequence

from ._errors import OptionError
from ._pinfeed import _Transform

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Grayscale",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
    "eval",
    "train",
]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""The means of ImageNet's channels, red, green and blue."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""The standard deviations of ImageNet's channels."""

_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")


def _sides(name: str, size: Any) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(size, int):
        size = (size, size)
    size = tuple(size)
    if len(size) == 1:
        size *= 2
    if len(size) != 2 or not all(isinstance(side, int) and 0 < side < 2**31 for side in size):
        raise OptionError(f"{name}: size={size!r}: it is a positive number of pixels, or (height, width)")
    height, width = size
    return height, width


def _probability(name: str, p: float) -> float:
    if not 0 <= p <= 1:
        raise OptionError(f"{name}: p={p!r} is no probability: it is from 0 to 1")
    return float(p)


def _range(name: str, what: str, value: Sequence[float], least: float) -> tuple[float, float]:
    low, high = (float(bound) for bound in value)
    if not least < low <= high < float("inf"):
        raise OptionError(f"{name}: {what}={value!r}: it is (smallest, largest), above {least:g}")
    return low, high


def _filter(name: str, interpolation: Any) -> str:
    """The filter's name; torchvision's ``InterpolationMode`` has it as its value."""
    value: str = getattr(interpolation, "value", interpolation)
    if value not in _FILTERS:
        raise OptionError(f"{name}: interpolation={interpolation!r}: it is one of {', '.join(_FILTERS)}")
    return value


def _color(name: str, fill: Any) -> tuple[int, int, int]:
    color = (fill,) * 3 if isinstance(fill, int) else tuple(fill)
    if len(color) != 3 or not all(isinstance(byte, int) and 0 <= byte <= 255 for byte in color):
        raise OptionError(f"{name}: fill={fill!r}: it is a grey, or (red, green, blue), of 0 to 255")
    red, green, blue = color
    return red, green, blue


class _Step:
    """A transform: its operations, and what it wants of the whole."""

    interpolation: str | None = None
    fill: tuple[int, int, int] | None = None

    def __init__(self, *operations: tuple[Any, ...], **arguments: Any) -> None:
        self._operations = operations
        self._arguments = arguments

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items())
        return f"{type(self).__name__}({arguments})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class Resize(_Step):
    """The short side becomes ``size`` pixels; or both sides, if it is (height, width)."""

    def __init__(self, size: int | Sequence[int], interpolation: Any = "bilinear", max_size: None = None, antialias: bool = True) -> None:
        if max_size is not None:
            raise OptionError("Resize: max_size has no counterpart here: crop after it, or give both sides, (height, width)")
        if not antialias:
            raise OptionError("Resize: pictures are resized as Pillow does, with antialias: antialias=False has no counterpart here")
        height, width = _sides("Resize", size)
        short = isinstance(size, int) or len(tuple(size)) == 1
        super().__init__(("resize", height) if short else ("resize_exact", height, width), size=size, interpolation=interpolation)
        self.interpolation = _filter("Resize", interpolation)


class CenterCrop(_Step):
    """The central pixels."""

    def __init__(self, size: int | Sequence[int]) -> None:
        super().__init__(("center_crop", *_sides("CenterCrop", size)), size=size)


class RandomResizedCrop(_Step):
    """A rectangle of random size, proportions and place, resized."""

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Any = "bilinear",
        antialias: bool = True,
    ) -> None:
        if not antialias:
            raise OptionError("RandomResizedCrop: pictures are resized as Pillow does, with antialias: antialias=False has no counterpart here")
        name = "RandomResizedCrop"
        low, high = _range(name, "scale", scale, 0)
        if high > 1:
            raise OptionError(f"{name}: scale={scale!r}: it is a share of the picture, at most 1")
        super().__init__(
            ("random_resized_crop", *_sides(name, size), low, high, *_range(name, "ratio", ratio, 0)),
            size=size,
            scale=scale,
            ratio=ratio,
            interpolation=interpolation,
        )
        self.interpolation = _filter(name, interpolation)


class RandomCrop(_Step):
    """A rectangle at a random place, of the picture with ``padding`` around it."""

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = True,
        fill: int | Sequence[int] = 0,
        padding_mode: str = "constant",
    ) -> None:
        operations: list[tuple[Any, ...]] = [("random_crop", *_sides("RandomCrop", size))]
        if padding is not None:
            operations.insert(0, Pad(padding, fill, padding_mode)._operations[0])
        elif padding_mode != "constant":
            raise OptionError(f"RandomCrop: padding_mode={padding_mode!r}: borders have one colour here, padding_mode=\"constant\"")
        super().__init__(*operations, size=size, padding=padding, fill=fill)
        self.fill = _color("RandomCrop", fill)


class Pad(_Step):
    """A border: its width on each side, (left and right, top and bottom), or (left, top, right, bottom)."""

    def __init__(self, padding: int | Sequence[int], fill: int | Sequence[int] = 0, padding_mode: str = "constant") -> None:
        if padding_mode != "constant":
            raise OptionError(f"Pad: padding_mode={padding_mode!r}: borders have one colour here, padding_mode=\"constant\"")
        sides = (padding,) * 4 if isinstance(padding, int) else tuple(padding) * (4 // max(len(tuple(padding)), 1))
        if len(sides) != 4 or not all(isinstance(side, int) and 0 <= side < 65536 for side in sides):
            raise OptionError(f"Pad: padding={padding!r}: it is one, two or four numbers of pixels, below 65536")
        super().__init__(("pad", *sides), padding=padding, fill=fill)
        self.fill = _color("Pad", fill)


class RandomHorizontalFlip(_Step):
    """Left and right are swapped, with probability ``p``."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(("random_horizontal_flip", _probability("RandomHorizontalFlip", p)), p=p)


class RandomVerticalFlip(_Step):
    """Top and bottom are swapped, with probability ``p``."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(("random_vertical_flip", _probability("RandomVerticalFlip", p)), p=p)


class ColorJitter(_Step):
    """Brightness, contrast, saturation and hue change at random, by at most as much, in a random order."""

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        for what, by in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation), ("hue", hue)):
            most = 0.5 if what == "hue" else 1e6
            if not isinstance(by, (int, float)) or not 0 <= by <= most:
                raise OptionError(f"ColorJitter: {what}={by!r}: it is one number, from 0 to {most:g}")
        super().__init__(
            ("color_jitter", brightness, contrast, saturation, hue),
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            hue=hue,
        )


class RandomGrayscale(_Step):
    """The picture becomes grey, in three channels, with probability ``p``."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(("random_grayscale", _probability("RandomGrayscale", p)), p=p)


class Grayscale(_Step):
    """The picture becomes grey, in three channels."""

    def __init__(self, num_output_channels: int = 3) -> None:
        if num_output_channels != 3:
            raise OptionError("Grayscale: pictures have three channels here: num_output_channels=3, and keep one of them")
        super().__init__(("random_grayscale", 1.0), num_output_channels=3)


class RandomRotation(_Step):
    """The picture is turned around its centre by a random angle: at most ``degrees`` to either side, or from (smallest, largest)."""

    def __init__(self, degrees: float | Sequence[float], fill: int | Sequence[int] = 0) -> None:
        low, high = (-degrees, degrees) if isinstance(degrees, (int, float)) else degrees
        if not -1e6 < low <= high < 1e6:
            raise OptionError(f"RandomRotation: degrees={degrees!r}: it is a positive number, or (smallest, largest)")
        super().__init__(("random_rotation", float(low), float(high)), degrees=degrees, fill=fill)
        self.fill = _color("RandomRotation", fill)


class RandAugment(_Step):
    """A few operations, drawn from fourteen."""

    def __init__(self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31) -> None:
        if not 0 <= magnitude < num_magnitude_bins or num_ops < 0:
            raise OptionError(f"RandAugment: magnitude={magnitude!r} is not below num_magnitude_bins={num_magnitude_bins!r}")
        super().__init__(
            ("rand_augment", num_ops, magnitude, num_magnitude_bins),
            num_ops=num_ops,
            magnitude=magnitude,
            num_magnitude_bins=num_magnitude_bins,
        )


class RandomErasing(_Step):
    """A random rectangle is painted over with the colour ``value``, of 0 to 255. It comes before ``ToTensor``; the colour that becomes 0
    by ``Normalize`` is its mean: ``[round(255 * mean) for mean in IMAGENET_MEAN]``."""

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: int | Sequence[int] = 0,
    ) -> None:
        name = "RandomErasing"
        super().__init__(
            ("random_erasing", _probability(name, p), *_range(name, "scale", scale, 0), *_range(name, "ratio", ratio, 0), _color(name, value)),
            p=p,
            scale=scale,
            ratio=ratio,
            value=value,
        )


class ToTensor(_Step):
    """Pixels become numbers from 0 to 1, and the channels the first dimension. ``dtype`` is "float32", "float16" or "bfloat16".

    With ``channels_last``, batches are ``[N, H, W, 3]``: ``images.permute(0, 3, 1, 2)`` is then torch's memory format of that name, without a copy.
    """

    def __init__(self, dtype: str = "float32", channels_last: bool = False) -> None:
        super().__init__(dtype=dtype, channels_last=channels_last)
        self.dtype = str(dtype).removeprefix("torch.")
        self.channels_last = channels_last


class Normalize(_Step):
    """Each channel becomes ``(value - mean) / std``. It comes after ``ToTensor``."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        super().__init__(mean=tuple(mean), std=tuple(std))
        for what, values in (("mean", mean), ("std", std)):
            if len(values) != 3 or not all(-1e30 < value < 1e30 for value in values) or (what == "std" and min(values) <= 0):
                raise OptionError(f"Normalize: {what}={values!r}: it is three numbers, for red, green and blue; deviations are positive")
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)


class Compose:
    """Several transforms, one after the other.

    >>> Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(IMAGENET_MEAN, IMAGENET_STD)]).output_size
    (224, 224)

    ``scaled_decoding`` lets JPEG files be decoded at a half, a quarter or an eighth of their size where that is no smaller than the
    result: faster for large photographs, and a little softer.
    """

    def __init__(self, transforms: Sequence[Any], *, scaled_decoding: bool = False) -> None:
        self.transforms = list(transforms)
        self.scaled_decoding = scaled_decoding
        operations: list[tuple[Any, ...]] = []
        filters: dict[str, str] = {}
        colors: dict[tuple[int, int, int], str] = {}
        to_tensor: ToTensor | None = None
        normalize: Normalize | None = None
        for step in self.transforms:
            name = type(step).__name__
            if not isinstance(step, _Step):
                raise OptionError(
                    f"Compose: {step!r} is no transform of pinfeed's, which run without Python. Leave it out, and give the function to "
                    "`dataset.map(function)`, which gets the finished sample; or give ImageFolder a function as its transform, which gets the "
                    "decoded picture"
                )
            if isinstance(step, ToTensor):
                if to_tensor is not None:
                    raise OptionError("Compose: there are two ToTensor()")
                to_tensor = step
            elif isinstance(step, Normalize):
                if to_tensor is None or normalize is not None:
                    raise OptionError("Compose: Normalize comes once, after ToTensor()")
                normalize = step
            elif to_tensor is not None:
                raise OptionError(f"Compose: {name} comes before ToTensor(): it works on bytes here")
            operations.extend(step._operations)
            if step.interpolation is not None:
                filters[step.interpolation] = name
            if step.fill is not None:
                colors[step.fill] = name
        if len(filters) > 1:
            raise OptionError(f"Compose: all transforms resample with one filter here, and these have {', '.join(filters)}")
        if len(colors) > 1:
            raise OptionError("Compose: all borders have one colour here: give the same fill to each")
        finish = None
        if to_tensor is not None:
            mean, std = (normalize.mean, normalize.std) if normalize else ((0.0,) * 3, (1.0,) * 3)
            finish = (mean, std, to_tensor.dtype, to_tensor.channels_last)
        self._native = _Transform(operations, next(iter(filters), None), next(iter(colors), (0, 0, 0)), scaled_decoding, finish)

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of the transformed pictures, if it is the same for all."""
        return self._native.output_size

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"

    def __reduce__(self) -> Any:
        return _compose, (self.transforms, self.scaled_decoding)


def _compose(transforms: list[Any], scaled_decoding: bool) -> Compose:
    return Compose(transforms, scaled_decoding=scaled_decoding)


def _finish(dtype: str, mean: Sequence[float], std: Sequence[float], channels_last: bool) -> list[Any]:
    if dtype == "uint8":
        return []
    return [ToTensor(dtype, channels_last), Normalize(mean, std)]


def train(
    size: int | Sequence[int] = 224,
    *,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: str = "float32",
    channels_last: bool = False,
) -> Compose:
    """The usual transform for training on ImageNet: ``RandomResizedCrop(size)``, ``RandomHorizontalFlip()``, ``ToTensor()``,
    ``Normalize(mean, std)``. With ``dtype="uint8"``, pictures stay bytes, ``[n, height, width, 3]``."""
    return Compose([RandomResizedCrop(size), RandomHorizontalFlip(), *_finish(dtype, mean, std, channels_last)])


def eval(
    size: int = 224,
    *,
    resize: int | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: str = "float32",
    channels_last: bool = False,
) -> Compose:
    """The usual transform for evaluating on ImageNet: ``Resize(resize)``, ``CenterCrop(size)``, ``ToTensor()``, ``Normalize(mean, std)``.
    ``resize`` is ``size * 256 / 224`` by default."""
    short = resize if resize is not None else (size * 256 + 112) // 224
    return Compose([Resize(short), CenterCrop(size), *_finish(dtype, mean, std, channels_last)])
