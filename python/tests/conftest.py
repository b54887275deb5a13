"""What the tests share. They run against the installed package: `ci/python.sh` builds the wheel and installs it."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def pytest_report_header(config):
    import pinfeed

    return f"pinfeed {pinfeed.__version__} from {os.path.dirname(pinfeed.__file__)}"


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Class folders with PNG and JPEG files of several sizes."""
    from PIL import Image

    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(7)
    for label, name in enumerate(("cat", "dog", "fox")):
        (root / name).mkdir()
        for number in range(8):
            size = (70 + 5 * number, 64 + 3 * label)
            smooth = Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
            kind = "png" if number % 2 else "jpg"
            smooth.save(root / name / f"{number}.{kind}")
    return root


@pytest.fixture
def run_program():
    """Runs a program in a process of its own; gives its exit status, and what it printed."""

    def run(name, *arguments, timeout=120, **options):
        program = pathlib.Path(__file__).parent / "programs" / name
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(program), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )
        return done.returncode, done.stdout, done.stderr

    return run
