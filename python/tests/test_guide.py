"""Each line of Python in the guide (docs/guide) runs, page by page, in a folder of its own with the data that the pages speak of.

A block that is marked (```python,torch) runs where that package is installed, or for `gpu` where torch has a GPU. The Rust of these pages is run
by `cargo test --doc guide::`, with the same data (docs/guide/data.rs).
"""

import importlib.util
import io
import pathlib
import re
import tarfile

import numpy as np
import pytest
from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ROOT / "docs" / "guide" / "src"
BLOCK = re.compile(r"^```python(?:,(\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def picture(grey):
    file = io.BytesIO()
    Image.new("RGB", (40, 40), (grey, grey, grey)).save(file, "JPEG")
    return file.getvalue()


def write(folder):
    for label, name in enumerate(("cat", "dog")):
        (folder / "pets" / name).mkdir(parents=True)
        for number in range(16):
            (folder / "pets" / name / f"{number:02}.jpg").write_bytes(picture(100 * label + number))
    rows = "".join(f"{40 + row},{1 + row % 5},{1000 * row}\n" for row in range(200))
    (folder / "houses.csv").write_text("size,rooms,price\n" + rows)
    (np.arange(20000) % 97).astype(np.uint16).tofile(folder / "train.bin")
    for name in ("books", "web"):
        (folder / f"{name}.txt").write_text("".join(f"{name} {line} {'word ' * (line % 7)}\n" for line in range(100)))
    (folder / "shards").mkdir()
    for shard in range(4):
        with tarfile.open(folder / "shards" / f"pets-{shard:06}.tar", "w") as archive:
            for sample in range(24):
                for field, contents in (("cls", str(sample % 2).encode()), ("jpg", picture(50 * shard + sample))):
                    member = tarfile.TarInfo(f"{shard:02}{sample:04}.{field}")
                    member.size = len(contents)
                    archive.addfile(member, io.BytesIO(contents))


def has(needs):
    if needs == "gpu":
        return has("torch") and importlib.import_module("torch").cuda.is_available()
    return not needs or importlib.util.find_spec(needs) is not None


def pages():
    return [str(page.relative_to(PAGES)) for page in sorted(PAGES.rglob("*.md")) if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", pages())
def test_the_pages_lines_run(page, tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "guide"}
    ran = 0
    for needs, code in BLOCK.findall((PAGES / page).read_text()):
        if has(needs):
            exec(compile(code, page, "exec"), names)  # noqa: S102
            ran += 1
    if not ran:
        pytest.skip("what its lines need is not installed")


def test_there_are_pages():
    assert len(pages()) >= 10
