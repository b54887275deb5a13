"""Pictures: the values of Pillow and torchvision, and data sets of files."""

import pickle

import numpy as np
import pytest
from PIL import Image

import pinfeed
from pinfeed import DataLoader, ImageFolder
from pinfeed import transforms as T

torch = pytest.importorskip("torch")

torchvision = pytest.importorskip("torchvision")
V = torchvision.transforms


def all_of(loader):
    batches = list(loader)
    return torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_folder_is_torchvisions(pictures, num_workers):
    ours, theirs = ImageFolder(pictures), torchvision.datasets.ImageFolder(pictures)
    assert (ours.classes, ours.class_to_idx, ours.targets) == (theirs.classes, theirs.class_to_idx, theirs.targets)
    assert ours.samples == theirs.samples == ours.imgs and len(ours) == len(theirs)
    data = ImageFolder(pictures, T.CenterCrop(48))
    images, labels = all_of(DataLoader(data, batch_size=5, num_workers=num_workers))
    assert images.dtype == torch.uint8 and images.shape == (24, 48, 48, 3)
    assert labels.tolist() == theirs.targets
    for (path, _), image in zip(theirs.samples, images):
        if path.endswith(".png"):
            assert np.array_equal(image.numpy(), V.CenterCrop(48)(Image.open(path).convert("RGB")))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_cropped_and_normalized_values_are_torchvisions_to_the_bit(pictures, num_workers):
    steps = lambda module: [module.CenterCrop(56), module.ToTensor(), module.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
    theirs = torchvision.datasets.ImageFolder(pictures, V.Compose(steps(V)))
    images, _ = all_of(DataLoader(ImageFolder(pictures, T.Compose(steps(T))), batch_size=7, num_workers=num_workers))
    assert images.dtype == torch.float32 and images.shape == (24, 3, 56, 56)
    for (path, _), image, (their, _) in zip(theirs.samples, images, theirs):
        if path.endswith(".png"):
            assert torch.equal(image, their)
        else:  # another decoder of JPEG, which rounds otherwise
            assert (image - their).abs().mean() < 0.02


def test_resized_values_are_torchvisions(pictures):
    steps = lambda module: [module.Resize(40), module.CenterCrop(36), module.ToTensor()]
    theirs = torchvision.datasets.ImageFolder(pictures, V.Compose(steps(V)))
    images, _ = all_of(DataLoader(ImageFolder(pictures, T.Compose(steps(T))), batch_size=7))
    for (path, _), image, (their, _) in zip(theirs.samples, images, theirs):
        if path.endswith(".png"):
            assert ((image - their).abs() * 255).max() <= 2.01


def test_types_and_layouts(pictures):
    def batch(**options):
        return next(iter(DataLoader(ImageFolder(pictures, T.eval(32, **options)), batch_size=24)))[0]

    exact = batch()
    assert batch(dtype="float16").dtype == torch.float16 and torch.equal(batch(dtype="float16"), exact.half())
    assert torch.equal(batch(dtype="bfloat16"), exact.bfloat16())
    assert torch.equal(batch(channels_last=True), exact.permute(0, 2, 3, 1))
    pixels = batch(dtype="uint8")
    assert pixels.dtype == torch.uint8 and pixels.shape == (24, 32, 32, 3)
    normalized = V.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)(pixels.permute(0, 3, 1, 2) / 255)
    assert torch.equal(normalized, exact)


@pytest.mark.parametrize("other", [1, 3])
def test_random_transforms_follow_from_the_seed(pictures, other):
    def epochs(num_workers, seed=5):
        data = ImageFolder(pictures, T.train(32))
        loader = DataLoader(data, batch_size=6, shuffle=True, seed=seed, num_workers=num_workers)
        return [all_of(loader) for _ in range(2)]

    first = epochs(0)
    for ours, again in zip(first, epochs(other)):
        assert torch.equal(ours[0], again[0]) and torch.equal(ours[1], again[1])
    assert not torch.equal(first[0][0], first[1][0])
    assert not torch.equal(first[0][0], epochs(0, seed=6)[0][0])


def test_all_transforms_run(pictures):
    data = ImageFolder(
        pictures,
        T.Compose(
            [
                T.RandomResizedCrop((40, 48), scale=(0.2, 1.0), interpolation=V.InterpolationMode.BICUBIC),
                T.RandomHorizontalFlip(),
                T.RandomVerticalFlip(0.2),
                T.ColorJitter(0.4, 0.4, 0.4, 0.1),
                T.RandomGrayscale(),
                T.RandomRotation(10),
                T.RandAugment(),
                T.Pad((2, 3)),
                T.RandomCrop(32, padding=2),
                T.RandomErasing(value=(124, 116, 104)),
                T.ToTensor(),
                T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
            ]
        ),
    )
    images, _ = all_of(DataLoader(data, batch_size=24, num_workers=2))
    assert images.shape == (24, 3, 32, 32) and images.isfinite().all()
    assert data.transform.output_size == (32, 32)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: T.RandomResizedCrop(0), "positive"),
        (lambda: T.RandomResizedCrop(8, scale=(0.5, 2)), "at most 1"),
        (lambda: T.RandomHorizontalFlip(1.5), "probability"),
        (lambda: T.Normalize((0.5,), (0.5,)), "three numbers"),
        (lambda: T.Normalize(T.IMAGENET_MEAN, (1, 0, 1)), "positive"),
        (lambda: T.Resize(9, interpolation="box"), "bilinear"),
        (lambda: T.Resize(9, antialias=False), "antialias"),
        (lambda: T.Compose([T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]), "after ToTensor"),
        (lambda: T.Compose([T.ToTensor(), T.CenterCrop(8)]), "before ToTensor"),
        (lambda: T.Compose([V.CenterCrop(8)]), "no transform of pinfeed's"),
        (lambda: T.Compose([T.Resize(8), T.RandomResizedCrop(8, interpolation="bicubic")]), "one filter"),
        (lambda: T.Compose([T.ToTensor("int8")]), "float32"),
        (lambda: T.Pad((1, 2, 3)), "padding"),
        (lambda: T.RandAugment(magnitude=31), "magnitude"),
        (lambda: T.Grayscale(1), "three channels"),
    ],
)
def test_transforms_refuse_with_a_reason(make, why):
    with pytest.raises(pinfeed.OptionError, match=why):
        make()


def test_a_function_as_transform_gets_the_decoded_picture(pictures):
    shapes = set()

    def function(image):
        shapes.add((type(image).__name__, image.dtype.name, image.ndim))
        return np.asarray(V.CenterCrop(20)(Image.fromarray(image)))

    images, labels = all_of(DataLoader(ImageFolder(pictures, function), batch_size=8, num_workers=2))
    assert shapes == {("ndarray", "uint8", 3)}
    assert images.shape == (24, 20, 20, 3) and labels.tolist() == ImageFolder(pictures).targets
    image, label = ImageFolder(pictures, T.train(16))[-1]
    assert image.shape == (3, 16, 16) and label == 2


def test_a_broken_file_is_named_and_later_batches_come(pictures, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 40)).save(tmp_path / name / "0.png")
    (tmp_path / "a" / "1.jpg").write_bytes(b"no picture")
    iterator = iter(DataLoader(ImageFolder(tmp_path, T.eval(32)), num_workers=2))
    next(iterator)
    with pytest.raises(pinfeed.SampleError, match="1.jpg") as caught:
        next(iterator)
    assert (caught.value.index, caught.value.batch, caught.value.epoch) == (1, 1, 0)
    assert next(iterator)[1].tolist() == [1]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(pinfeed.DataSetError):
        ImageFolder(tmp_path / "a")
    with pytest.raises(pinfeed.OptionError, match="decode"):
        ImageFolder(pictures, decode="gpu")
    assert next(iter(DataLoader(ImageFolder(pictures, T.eval(32), decode="both"), batch_size=24)))[0].shape == (24, 3, 32, 32)
    given = DataLoader(ImageFolder(pictures, T.eval(32), decode="both"), batch_size=24, device_share=0.5)
    assert next(iter(given))[0].shape == (24, 3, 32, 32) and given.stats().device_share in (None, 0.5)
    with pytest.raises(pinfeed.OptionError, match="device_share"):
        DataLoader(ImageFolder(pictures, decode="both"), device_share=64)
    with pytest.raises(pinfeed.OptionError, match="map the samples"):
        ImageFolder(pictures, target_transform=int)


def test_lists_subsets_and_pickles(pictures):
    data = ImageFolder(pictures, T.train(24))
    again = pickle.loads(pickle.dumps(data))
    loaders = [DataLoader(each, batch_size=24, shuffle=True) for each in (data, again)]
    batches = [next(iter(loader)) for loader in loaders]
    assert torch.equal(batches[0][0], batches[1][0])
    listed = ImageFolder.from_list([(path, data.classes[label]) for path, label in data.samples], T.eval(24))
    assert listed.targets == data.targets and len(listed) == 24
    assert pickle.loads(pickle.dumps(listed)).targets == data.targets
    train, val = pinfeed.random_split(listed, [0.75, 0.25], seed=3)
    assert (len(train), len(val)) == (18, 6)
    assert sorted(train.indices + val.indices) == list(range(24))
    assert next(iter(DataLoader(val, batch_size=6)))[1].tolist() == [data.targets[index] for index in val.indices]
    both = pinfeed.ConcatDataset([train, val])
    assert len(both) == 24 and next(iter(DataLoader(both, batch_size=24)))[0].shape == (24, 3, 24, 24)
    lacking = ImageFolder.from_list([(data.samples[-1][0], "fox")])
    assert lacking.targets == [0]
    folder = ImageFolder(pictures, classes=["fox", "dog", "cat"])
    assert folder.targets[0] == 2 and folder.class_to_idx["fox"] == 0
    for wrong in ([1, 2], [0.5, 0.4]):
        with pytest.raises(pinfeed.OptionError):
            pinfeed.random_split(listed, wrong)
