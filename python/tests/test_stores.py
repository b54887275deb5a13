"""Buckets and web servers, by URL: real servers on the loopback, which the tests start and stop. `ci/servers.sh` installs them; PINFEED_S3S_FS
and PINFEED_MOTO name them elsewhere."""

import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request

import numpy as np
import pytest

import pinfeed
from pinfeed import DataLoader, ImageFolder, Parquet, WebDataset, _pinfeed
from pinfeed import transforms as T

pytestmark = pytest.mark.skipif("object-store" not in _pinfeed.machine()["features"], reason="built without object-store")
ROOT = pathlib.Path(__file__).parents[2]
KEY, SECRET = "THE-KEY-OF-THE-TEST", "the secret of the test"


def tool(variable, path):
    """A server's program, or a skip."""
    for place in (os.environ.get(variable), ROOT / "target" / "tools" / path):
        if place and os.path.exists(place):
            return str(place)
    return pytest.skip(f"{variable} names no program: ci/servers.sh installs it")


@contextlib.contextmanager
def running(command):
    """A server on a port of its own, which `{}` stands for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [part.replace("{}", str(port)) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert process.poll() is None and time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def data(tmp_path_factory, pictures):
    """A folder as the bucket has it: pictures, shards, and a table."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(pictures, folder / "pictures")
    (folder / "shards").mkdir()
    files = sorted(pictures.glob("*/*"))
    for shard in range(3):
        with tarfile.open(folder / "shards" / f"train-{shard:06}.tar", "w") as archive:
            for number, file in list(enumerate(files))[shard::3]:
                label = folder / "label"
                label.write_text(str(number))
                archive.add(file, f"{number:04}{file.suffix}")
                archive.add(label, f"{number:04}.cls")
                label.unlink()
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    (folder / "table").mkdir()
    for part in range(2):
        pq.write_table(pa.table({"id": list(range(100 * part, 100 * part + 100)), "x": np.arange(100) / 7}), folder / "table" / f"{part}.parquet", row_group_size=30)
    return folder


@pytest.fixture(scope="module", params=["s3s-fs", "moto"])
def bucket(request, data, tmp_path_factory):
    """A bucket with that folder; gives its server's URL."""
    if request.param == "s3s-fs":
        root = tmp_path_factory.mktemp("s3s")
        shutil.copytree(data, root / "bucket")
        command = [tool("PINFEED_S3S_FS", "bin/s3s-fs"), "--host", "127.0.0.1", "--port", "{}", "--access-key", KEY, "--secret-key", SECRET, str(root)]
        with running(command) as url:
            yield url
        return
    with running([tool("PINFEED_MOTO", "moto/bin/moto_server"), "-H", "127.0.0.1", "-p", "{}"]) as url:
        def put(place, content):
            headers = {"Content-Type": "application/octet-stream"}  # (a form, which is urllib's default, hangs)
            urllib.request.urlopen(urllib.request.Request(f"{url}/{place}", data=content, method="PUT", headers=headers), timeout=60)

        put("bucket", b"")
        for file in data.glob("**/*"):
            if file.is_file():
                put(f"bucket/{file.relative_to(data)}", file.read_bytes())
        yield url


@pytest.fixture
def credentials(bucket, monkeypatch):
    """The environment, by the AWS SDK's names."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def loaded(data, **options):
    return list(DataLoader(data, batch_size=7, output="numpy", **options))


def same(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs):
        one, other = (list(batch.values()) if isinstance(batch, dict) else batch for batch in (one, other))
        assert all(np.array_equal(mine, their) for mine, their in zip(one, other, strict=True))


TRANSFORM = T.Compose([T.RandomResizedCrop(16), T.ToTensor()])


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_bucket_is_what_the_folder_is(credentials, data, num_workers):
    options = {"shuffle": True, "seed": 3, "num_workers": num_workers}
    local, stored = ImageFolder(data / "pictures", TRANSFORM), ImageFolder("s3://bucket/pictures", TRANSFORM)
    assert len(stored) == len(local) == 24 and stored.classes == local.classes == ["cat", "dog", "fox"]
    assert stored.targets == local.targets and stored.class_to_idx["fox"] == 2
    assert stored.samples[9][0] == os.path.relpath(local.samples[9][0], data / "pictures")
    same(loaded(stored, **options), loaded(local, **options))
    shards = "shards/train-{000000..000002}.tar"
    same(loaded(WebDataset(f"s3://bucket/{shards}", ["jpg;png", "cls"], TRANSFORM), **options), loaded(WebDataset(data / shards, ["jpg;png", "cls"], TRANSFORM), **options))
    same(loaded(Parquet("s3://bucket/table"), **options), loaded(Parquet(data / "table"), **options))
    one = loaded(Parquet("s3://bucket/table/*.parquet", ["id"], filters=[("id", ">=", 150)]), num_workers=num_workers)
    assert [number for batch in one for number in batch["id"].tolist()] == list(range(150, 200))


def test_a_run_on_a_bucket_goes_on(credentials, data):
    def make():
        return DataLoader(Parquet("s3://bucket/table"), batch_size=16, shuffle=True, seed=3, num_workers=2, output="numpy")

    whole = [batch["id"].tolist() for batch in make()]
    loader = make()
    first = [batch["id"].tolist() for _, batch in zip(range(5), loader)]
    state = loader.state_dict()
    loader.close()
    resumed = make()
    resumed.load_state_dict(state)
    assert first + [batch["id"].tolist() for batch in resumed] == whole
    ranks = [
        DataLoader(ImageFolder("s3://bucket/pictures", TRANSFORM), batch_size=4, shuffle=True, num_workers=2, world=pinfeed.World(rank, 2), output="numpy")
        for rank in range(2)
    ]
    assert sorted(label for loader in ranks for _, labels in loader for label in labels.tolist()) == sorted([0, 1, 2] * 8)


def test_what_is_wrong_with_a_bucket_is_said(credentials, monkeypatch):
    for open_ in (Parquet, ImageFolder, WebDataset):
        with pytest.raises(pinfeed.DataSetError, match="nothing"):
            open_("s3://bucket/nothing/x-{0..1}.tar" if open_ is WebDataset else "s3://bucket/nothing")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(pinfeed.DataSetError, match="AWS_ALLOW_HTTP=true"):
        Parquet("s3://bucket/table")
    with pytest.raises(pinfeed.DataSetError, match="ftp://"):
        ImageFolder("ftp://bucket/table")


def test_wrong_credentials_are_said_and_not_shown(data, tmp_path, monkeypatch):
    shutil.copytree(data, tmp_path / "bucket")
    command = [tool("PINFEED_S3S_FS", "bin/s3s-fs"), "--host", "127.0.0.1", "--port", "{}", "--access-key", KEY, "--secret-key", SECRET, str(tmp_path)]
    with running(command) as url:
        for name, value in (("ENDPOINT_URL", url), ("ALLOW_HTTP", "true"), ("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", "hidden-and-wrong"), ("REGION", "us-east-1")):
            monkeypatch.setenv(f"AWS_{name}", value)
        with pytest.raises(pinfeed.DataSetError, match="AWS_ACCESS_KEY_ID") as caught:
            Parquet("s3://bucket/table")
        assert "hidden" not in str(caught.value)


def test_a_server_that_goes_away_is_an_error_and_comes_back(credentials, data):
    # (It is the same loader that goes on: with the next server at its place, nothing of it would be known. So the store is only left midway.)
    loader = DataLoader(ImageFolder("s3://bucket/pictures", TRANSFORM), batch_size=4, shuffle=True, num_workers=3, output="numpy")
    for _ in range(3):
        for _, batch in zip(range(2), loader):
            assert batch[0].shape == (4, 3, 16, 16)
    assert sum(len(labels) for _, labels in loader) == 24
    loader.close()


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A web server that sends parts of files."""

    asked = []

    def do_HEAD(self):
        self.answer(send=False)

    def do_GET(self):
        self.answer(send=True)

    def answer(self, send):
        path = pathlib.Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content, part = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin, end = (int(part[1]), min(int(part[2] or len(content) - 1) + 1, len(content))) if part else (0, len(content))
        self.asked.append(end - begin if send else 0)
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", f'"{len(content)}"')
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        if send:
            self.wfile.write(content[begin:end])

    def log_message(self, *arguments):
        pass


def test_a_file_of_a_web_server(data, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    noise = np.random.default_rng(1)
    table = pa.table({"id": list(range(5000)), "wide": [noise.bytes(400) for number in range(5000)]})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=1000)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *arguments: Ranges(*arguments, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/train.parquet"
        for _ in range(2):
            got = [number for batch in loaded(Parquet(url, ["id"]), num_workers=2) for number in batch["id"].tolist()]
            assert got == list(range(5000))
        assert 0 < sum(Ranges.asked) < (tmp_path / "train.parquet").stat().st_size  # what is not chosen is not read
        with pytest.raises(pinfeed.Error, match="other.parquet"):
            Parquet(url.replace("train", "other"))
    finally:
        server.shutdown()


def test_one_process_on_each_of_two_ranks_reads_a_bucket(credentials, run_program):
    status, out, err = run_program("bucket_on_ranks.py", "s3://bucket/table")
    assert (status, out) == (0, "100 100 True\n"), err
    status, out, err = run_program("bucket_of_pictures.py", "s3://bucket/pictures")
    assert (status, json.loads(out)) == (0, {"classes": ["cat", "dog", "fox"], "right": True}), err
    status, out, err = run_program("bucket_of_shards.py", "s3://bucket/shards/train-{000000..000002}.tar")
    assert (status, out) == (0, "24 True\n"), err
