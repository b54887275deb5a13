"""Tensors that NumPy, torch and JAX take where they lie, by DLPack. (On a GPU, with CuPy: gpu_dlpack.py.)"""

import ctypes
import gc
import pathlib
import threading

import numpy as np
import pytest

import pinfeed

LINUX = pathlib.Path("/proc/self/maps").exists()
NUMBERS = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def numpy_of(tensor):
    return np.from_dlpack(tensor)


def torch_of(tensor):
    return pytest.importorskip("torch").from_dlpack(tensor).numpy()


def jax_of(tensor):
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return np.asarray(jax.dlpack.from_dlpack(tensor))


CONSUMERS = [numpy_of, torch_of, jax_of]


def batches(*columns, **options):
    return list(pinfeed.DataLoader(pinfeed.TensorDataset(*columns), batch_size=4, output="dlpack", **options))


def pointer(tensor):
    return tensor.__array_interface__["data"][0]


# What a capsule has, read as C reads it.


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def struct_of(capsule):
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if 'capsule object "dltensor"' in repr(capsule):
        return None, Tensor.from_address(read(capsule, b"dltensor"))
    versioned = Versioned.from_address(read(capsule, b"dltensor_versioned"))
    return versioned, versioned.tensor


def said(tensor):
    """All that a consumer goes by, but the address."""
    strides = [tensor.strides[place] for place in range(tensor.ndim)] if tensor.strides else None
    shape = [tensor.shape[place] for place in range(tensor.ndim)]
    return (tensor.device_type, tensor.device_id), (tensor.code, tensor.bits, tensor.lanes), shape, strides


@pytest.mark.parametrize("of", CONSUMERS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_values_and_types(of, dtype):
    values = np.arange(10 * 3 * 2).reshape(10, 3, 2) % 2 if dtype == "bool" else np.arange(60).reshape(10, 3, 2) * 3 - (0 if dtype[0] == "u" else 50)
    values = values.astype(dtype)
    got = batches(values, num_workers=2)
    assert [(len(parts), parts[0].dtype, parts[0].shape) for parts in got] == [(1, dtype, (n, 3, 2)) for n in (4, 4, 2)]
    arrays = [of(x) for (x,) in got]
    assert all(array.dtype == dtype and array.strides == values[:4].strides for array in arrays)
    assert np.array_equal(np.concatenate(arrays), values)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_capsules_say_what_numpys_say(dtype):
    values = np.zeros((4, 3, 2), dtype)
    ((x,),) = batches(values)
    for options in ({}, {"max_version": (1, 0)}, {"max_version": (1, 3), "copy": True}, {"max_version": (0, 8), "stream": None}):
        capsule = x.__dlpack__(**options)
        versioned, ours = struct_of(capsule)
        assert (versioned is None) == (options.get("max_version", (0, 0)) < (1, 0))
        numpys = values.__dlpack__()
        assert said(ours) == said(struct_of(numpys)[1])
        assert ours.byte_offset == 0 and (options.get("copy") or ours.data % 64 == 0)  # (or JAX would copy it)
        if versioned:
            assert (versioned.major, versioned.flags) == (1, 2 if options.get("copy") else 0)
        assert (ours.data == pointer(np.asarray(x))) == (not options.get("copy"))


@pytest.mark.parametrize("of", CONSUMERS)
def test_nothing_is_copied(of):
    if of is jax_of:
        jax = pytest.importorskip("jax")
        address = lambda x: jax.dlpack.from_dlpack(x).unsafe_buffer_pointer()  # noqa: E731
    elif of is torch_of:
        torch = pytest.importorskip("torch")
        address = lambda x: torch.from_dlpack(x).data_ptr()  # noqa: E731
    else:
        address = lambda x: pointer(np.from_dlpack(x))  # noqa: E731
    for x, y in batches(np.zeros((10, 100), np.float32), np.zeros(10, np.uint8)):
        for tensor in (x, y):
            assert address(tensor) == address(tensor) == pointer(np.asarray(tensor)) == pointer(tensor.numpy())


def test_bfloat16():
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    values = torch.arange(20).reshape(10, 2).to(torch.bfloat16) / 7
    for place, (x,) in enumerate(batches(values)):
        expected = values[4 * place : 4 * place + 4]
        there = torch.from_dlpack(x)
        assert there.dtype == torch.bfloat16 and torch.equal(there, expected)
        there = jax.dlpack.from_dlpack(x)
        assert there.dtype == jax.numpy.bfloat16 and np.array_equal(np.asarray(there.astype("float32")), expected.float().numpy())
        with pytest.raises(pinfeed.Error, match="NumPy has no bfloat16"):
            x.numpy()
        with pytest.raises((BufferError, RuntimeError)):  # NumPy's own answer
            np.from_dlpack(x)
        with pytest.raises(BufferError, match="no bfloat16"):
            memoryview(x)


@pytest.mark.parametrize("of", CONSUMERS)
def test_no_elements(of):
    ((x,),) = batches(np.zeros((3, 0, 5), np.int32))
    assert (x.shape, x.nbytes, len(x)) == ((3, 0, 5), 0, 3)
    assert of(x).shape == (3, 0, 5) and np.asarray(x).shape == (3, 0, 5)
    capsule = x.__dlpack__()
    assert struct_of(capsule)[1].data is None


@pytest.mark.parametrize("of", CONSUMERS)
def test_no_dimensions(of, tmp_path):
    np.save(tmp_path / "pi.npy", np.float64(np.pi))
    array = pinfeed.npy(tmp_path / "pi.npy")
    assert of(array).shape == () and of(array) == np.pi
    capsule = array.__dlpack__()
    assert said(struct_of(capsule)[1]) == ((1, 0), (2, 64, 1), [], [])


def test_memory_of_a_file_is_read_only(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "values.npy", values)
    array = pinfeed.npy(tmp_path / "values.npy")
    there = np.from_dlpack(array)
    assert np.array_equal(there, values) and not there.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        there[0] = 1
    capsule, before = array.__dlpack__(max_version=(1, 0)), array.__dlpack__()
    assert struct_of(capsule)[0].flags == 1
    # A capsule of the time before DLPack 1.0 cannot say so: it has a copy.
    assert struct_of(before)[1].data != pointer(there)
    with pytest.raises(BufferError, match="must not be written"):
        array.__dlpack__(copy=False)
    copy = np.from_dlpack(array, copy=True)
    copy[:] = 0
    assert np.array_equal(there, values) and np.array_equal(np.load(tmp_path / "values.npy"), values)
    assert array.__dlpack_device__() == (1, 0)


def test_what_the_standard_says_of_devices_streams_and_copies():
    ((x,),) = batches(np.arange(4))
    assert x.__dlpack_device__() == (1, 0) and x.device == "cpu"
    x.__dlpack__(stream=-1, dl_device=(1, 0), copy=False, max_version=(2, 0))
    for options, reason in (
        ({"stream": 1}, "no streams"),
        ({"stream": 0}, "no streams"),
        ({"dl_device": (2, 0)}, 'asked for in cuda:0: DataLoader\\(device="cuda"\\)'),
        ({"dl_device": (1, 1)}, "asked for in DLPack device \\(1, 1\\)"),
    ):
        with pytest.raises(BufferError, match=reason):
            x.__dlpack__(**options)
    with pytest.raises(TypeError):
        x.__dlpack__(1)  # keywords only
    assert pointer(np.from_dlpack(x, device="cpu", copy=False)) == pointer(np.asarray(x))
    copy = np.from_dlpack(x, copy=True)
    copy[:] = 9
    assert np.asarray(x).tolist() == [0, 1, 2, 3]
    assert "capsule object" in repr(x.__dlpack__()) and repr(x) == "<pinfeed.Tensor of int64 [4] on cpu>"
    assert np.array(x, dtype=np.float32).dtype == np.float32 and memoryview(x).tolist() == [0, 1, 2, 3]
    np.asarray(x)[0] = 7  # consumers share the memory, and may write it
    assert np.from_dlpack(x)[0] == 7


def test_a_capsule_is_consumed_once():
    torch = pytest.importorskip("torch")
    ((x,),) = batches(np.arange(4))
    for options, name in (({}, "used_dltensor"), ({"max_version": (1, 0)}, "used_dltensor_versioned")):
        capsule = x.__dlpack__(**options)
        first = torch.from_dlpack(capsule)
        assert f'"{name}"' in repr(capsule)
        with pytest.raises((RuntimeError, ValueError, BufferError)):
            torch.from_dlpack(capsule)
        del capsule
        gc.collect()
        assert first.tolist() == [0, 1, 2, 3]


def test_tensors_outlive_the_loader_and_are_never_overwritten():
    values = np.repeat(np.arange(400, dtype=np.int32), 4096).reshape(400, 4096)
    taken = {}
    for epoch in range(3):
        with pinfeed.DataLoader(pinfeed.TensorDataset(values), batch_size=8, num_workers=3, output="dlpack") as loader:
            for place, (x,) in enumerate(loader):
                of = CONSUMERS[0] if place % 2 else (lambda x: x)
                taken[epoch, place] = of(x)
                if place % 3 == 2:
                    del taken[epoch, place - 1]
                if epoch == 2 and place == 20:
                    break  # in mid-epoch
    del loader, x
    gc.collect()
    assert len(taken) > 60
    for (_, place), there in taken.items():
        assert np.array_equal(np.asarray(there), values[8 * place : 8 * place + 8])


# Memory of this size is mapped by itself, and no more when its last holder is gone.


def is_mapped(address):
    ranges = (line.split()[0].split("-") for line in pathlib.Path("/proc/self/maps").read_text().splitlines())
    return any(int(first, 16) <= address < int(last, 16) for first, last in ranges)


@pytest.fixture
def mapped(tmp_path):
    """An array, alone, in a list; and where it is."""
    if not LINUX:
        pytest.skip("it reads /proc")
    path = tmp_path / "mapped.npy"
    np.save(path, np.arange(8 << 20))
    array = pinfeed.npy(path)
    capsule = array.__dlpack__(max_version=(1, 0))
    address = struct_of(capsule)[1].data
    assert is_mapped(address)
    return address, [array]


def test_what_nobody_consumes_goes_with_the_capsule(mapped):
    address, array = mapped
    capsules = [array[0].__dlpack__(max_version=(1, 0)) for _ in range(100)]
    array.clear()
    gc.collect()
    last = capsules.pop()
    capsules.clear()
    assert is_mapped(address)
    del last
    assert not is_mapped(address)


@pytest.mark.parametrize("of", CONSUMERS)
def test_a_consumer_lets_go_once_and_after_its_exporter(mapped, of):
    address, array = mapped
    there = [of(array[0]) for _ in range(3)]
    array.clear()
    gc.collect()
    while there:
        assert of is jax_of or is_mapped(address)  # (JAX asks for no version, and gets a copy)
        assert there.pop()[-1] == (8 << 20) - 1
    gc.collect()
    assert not is_mapped(address)


def test_deleters_run_on_other_threads(mapped):
    address, array = mapped
    there = [np.from_dlpack(array[0]) for _ in range(8)]
    capsules = [array[0].__dlpack__(max_version=(1, 0)) for _ in range(8)]
    array.clear()

    def drop(things):
        while things:
            things.pop()

    threads = [threading.Thread(target=drop, args=(things,)) for things in (there, capsules) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not is_mapped(address)


def test_a_deleter_runs_on_a_thread_without_the_interpreter(mapped):
    """As a C library calls it: `ctypes` lets go of the interpreter for the call."""
    address, array = mapped
    capsule = array[0].__dlpack__(max_version=(1, 0))
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    versioned, _ = struct_of(capsule)
    used = b"used_dltensor_versioned"
    assert rename(capsule, used) == 0
    array.clear()
    del capsule
    gc.collect()
    assert is_mapped(address)
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(versioned.deleter)
    thread = threading.Thread(target=deleter, args=(ctypes.addressof(versioned),))
    thread.start()
    thread.join()
    assert not is_mapped(address)


@pytest.mark.parametrize("what", ["capsules", "arrays", "thread", "cycle", "jax", "torch"])
def test_the_interpreter_ends_while_tensors_are_alive(run_program, what):
    if what in ("jax", "torch"):
        pytest.importorskip(what)
    status, out, err = run_program("dlpack_exits.py", what)
    assert (status, out, err) == (0, "end 3\n", "")


def test_jax_arrays_come_as_such():
    jax = pytest.importorskip("jax")
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    loader = pinfeed.DataLoader(pinfeed.TensorDataset(values, np.arange(10, dtype=np.int32)), batch_size=4, num_workers=2, output="jax")
    for _ in range(2):
        got = list(loader)
        assert all(isinstance(part, jax.Array) for batch in got for part in batch)
        assert np.array_equal(np.concatenate([np.asarray(x) for x, _ in got]), values)
    total = sum(jax.jit(lambda x: x.sum())(x) for x, _ in loader)
    assert total == values.sum()


@pytest.mark.parametrize("output", ["dlpack", "jax"])
def test_own_code_gets_numpys_arrays(output):
    if output == "jax":
        pytest.importorskip("jax")
    seen = set()

    def add(sample):
        seen.add(type(sample[0]))
        return (sample[0] + 1, sample[1])

    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    data = pinfeed.TensorDataset(values, np.arange(10)).map(add, output="numpy")
    got = list(pinfeed.DataLoader(data, batch_size=5, output=output))
    assert seen == {np.ndarray}
    assert np.array_equal(np.concatenate([np.asarray(x) for x, _ in got]), values + 1)
    collated = pinfeed.DataLoader(data, batch_size=5, output=output, collate_fn=lambda samples: [type(x) for x, _ in samples])
    assert next(iter(collated)) == [np.ndarray] * 5


def test_pictures_and_structures(pictures):
    data = pinfeed.ImageFolder(pictures, pinfeed.transforms.eval(32))
    for x, y in pinfeed.DataLoader(data, batch_size=8, num_workers=2, output="dlpack"):
        assert (x.shape, x.dtype, y.dtype) == ((8, 3, 32, 32), "float32", "int64")
        assert np.isfinite(np.from_dlpack(x)).all()

    class Own:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return {"x": np.full(3, index), "name": f"{index}", "more": [index, 0.5]}

    (batch,) = pinfeed.DataLoader(Own(), batch_size=6, output="dlpack")
    assert isinstance(batch["x"], pinfeed.Tensor) and isinstance(batch["more"][1], pinfeed.Tensor)
    assert batch["name"] == list("012345") and np.asarray(batch["x"])[:, 0].tolist() == list(range(6))


def test_who_gets_batches_is_said():
    for options, reason in (
        ({"output": "tensorflow"}, 'it is "torch", "numpy", "cupy", "jax", "dlpack" or "auto"'),
        ({"output": "cupy"}, "CuPy's arrays are on a GPU"),
        ({"output": "numpy", "device": "cuda:0"}, "NumPy's arrays are in host memory"),
        ({"output": "dlpack", "pin_memory": True}, None),
    ):
        if reason is None:
            continue
        with pytest.raises(pinfeed.OptionError, match=reason):
            pinfeed.DataLoader(range(3), **options)
    loader = pinfeed.DataLoader(range(3), output="dlpack")
    assert loader.sweep() == 0  # there is no device
    with loader.capturing():
        assert [np.asarray(x).tolist() for x in loader] == [[0], [1], [2]]


def test_others_arrays_are_samples():
    """What others export goes into a batch: by a buffer, by DLPack, or as bfloat16, which buffers have not."""
    jax = pytest.importorskip("jax")
    torch = pytest.importorskip("torch")
    values = np.arange(12, dtype=np.float32).reshape(6, 2)

    class Only:
        """An array that has nothing but DLPack."""

        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    class OnGpu(Only):
        def __dlpack_device__(self):
            return (2, 0)

    def loaded(rows):
        class Own:
            def __len__(self):
                return 6

            def __getitem__(self, index):
                return rows(index)

        return [x for x in pinfeed.DataLoader(Own(), batch_size=3, num_workers=2, output="torch")]

    bf16 = jax.numpy.asarray(values, dtype="bfloat16")
    for array, dtype in ((jax.numpy.asarray(values), torch.float32), (bf16, torch.bfloat16), (np.asarray(bf16), torch.bfloat16), (Only(values), torch.float32)):
        table = pinfeed.DataLoader(pinfeed.TensorDataset(array), batch_size=3, output="torch")
        rows = loaded((lambda index: Only(values[index])) if isinstance(array, Only) else (lambda index: array[index]))
        for got in ([x for (x,) in table], rows):
            assert [x.dtype for x in got] == [dtype] * 2
            assert torch.equal(torch.cat(got).float(), torch.from_numpy(values))
    tensor = next(iter(pinfeed.DataLoader(pinfeed.TensorDataset(values), batch_size=6, output="dlpack")))[0]
    assert torch.equal(torch.cat([x for (x,) in pinfeed.DataLoader(pinfeed.TensorDataset(tensor), output="torch")]), torch.from_numpy(values))
    with pytest.raises(TypeError, match="is on a device"):
        loaded(lambda index: OnGpu(values[index]))
