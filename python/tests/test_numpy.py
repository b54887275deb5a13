"""Without torch: NumPy arrays. `ci/python.sh` runs this file where torch is not installed."""

import doctest
import importlib.util

import numpy as np
import pytest

import pinfeed


def test_batches_are_numpy_arrays():
    data = pinfeed.TensorDataset(np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10))
    output = "numpy" if importlib.util.find_spec("torch") else "auto"
    for _ in range(2):
        batches = list(pinfeed.DataLoader(data, batch_size=4, num_workers=2, output=output))
        assert [[type(part) for part in batch] for batch in batches] == [[np.ndarray, np.ndarray]] * 3
        assert np.concatenate([batch[0] for batch in batches]).tolist() == np.arange(20).reshape(10, 2).tolist()


def test_what_needs_torch_says_so():
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is installed")
    for options in ({"output": "torch"}, {"pin_memory": True}):
        with pytest.raises(pinfeed.OptionError, match="torch"):
            pinfeed.DataLoader(range(3), **options)


@pytest.mark.parametrize("module", [pinfeed._loader, pinfeed.transforms])
def test_examples_of_docstrings_run(module):
    tested = doctest.testmod(module, extraglobs={"DataLoader": pinfeed.DataLoader})
    assert tested.attempted > 0 and tested.failed == 0


def test_everything_public_is_documented():
    missing = []
    for module in (pinfeed, pinfeed.transforms, pinfeed.samplers):
        for name in module.__all__:
            thing = getattr(module, name)
            if not getattr(thing, "__doc__", None):
                missing.append(name)
            for member, value in vars(thing).items() if isinstance(thing, type) and not issubclass(thing, Exception) else ():
                if not member.startswith("_") and callable(value) and not value.__doc__:
                    missing.append(f"{name}.{member}")
    assert not missing
