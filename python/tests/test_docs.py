"""Each line of docs/python.md runs."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"


def test_the_pages_lines_run(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "imagenet/train" / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.random.default_rng(number).integers(0, 256, (60, 70, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "imagenet/train" / name / f"{number}.jpg")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python(?:,(\w+))?\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    has = {"": True, "gpu": torch.cuda.is_available(), "jax": importlib.util.find_spec("jax") is not None}
    names = {}
    for needs, code in blocks:
        if has[needs]:
            exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102
