"""Each line of docs/python.md runs."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"


def tables(folder):
    """Writes the Parquet files, if pyarrow is there."""
    if importlib.util.find_spec("pyarrow") is None:
        return False
    import io
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "pets").mkdir()
    files = [io.BytesIO() for _ in range(16)]
    for number, file in enumerate(files):
        Image.fromarray(np.full((40, 40, 3), 9 * number, np.uint8)).save(file, "PNG")
    pets = pa.table({"image": [{"bytes": file.getvalue(), "path": "a.png"} for file in files], "label": [number % 2 for number in range(16)]})
    label = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    pq.write_table(pets.replace_schema_metadata({"huggingface": json.dumps(label)}), folder / "pets" / "0.parquet")
    houses = {"size": [50.0, 80.0] * 8, "rooms": [2, None] * 8, "price": list(range(16)), "year": [2019, 2020, 2021, 2022] * 4}
    pq.write_to_dataset(pa.table(houses), folder / "houses", partition_cols=["year"])
    return True


def test_the_pages_lines_run(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "imagenet/train" / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.random.default_rng(number).integers(0, 256, (60, 70, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "imagenet/train" / name / f"{number}.jpg")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python(?:,(\w+))?\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    for name, number in (("a", 0), ("b", 50)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{number + line} {line}\n" for line in range(9)))
    has = {"": True, "parquet": tables(tmp_path), "gpu": torch.cuda.is_available(), "jax": importlib.util.find_spec("jax") is not None}
    names = {}
    for needs, code in blocks:
        if has[needs]:
            exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102
