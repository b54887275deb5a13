"""What the page `docs/guide/src/thousand.md` measures: what a rank of many keeps of tar shards, and asks a store for.

    python python/benches/thousand.py index FOLDER --shards 1000 --samples 1000   # memory and time of a data set whose index is kept
    python python/benches/thousand.py order                                       # an order of 10^10 samples, the state, other ranks
    python python/benches/thousand.py requests FOLDER --ranks 8,10,1000           # what ranks ask a web server for
    python python/benches/thousand.py resume FOLDER --delay 50                    # the time to the first batch, and again

FOLDER is made if it is not there: shards of samples with two fields of one byte, `0000000000.bin` and `.cls` (2 KiB a sample in the archive).
Memory is RssAnon, that of this process and not of the page cache. Run `index` twice: the first run makes the index, the second one reads it.
Differences between two sizes are what counts: `--shards 1000` and `4000`.
"""

import argparse
import http.server
import json
import os
import pathlib
import re
import threading
import time

import torch  # noqa: F401 (before memory is looked at: pinfeed imports it when it is first needed)

import pinfeed

FIELDS = ["bin", "cls"]


def header(name, length):
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = b"%011o\0" % length
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = b"0"
    block[257:265] = b"ustar\00000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def make(folder, shards, samples):
    shards_of = folder / f"{shards}x{samples}"
    if not shards_of.exists():
        unfinished = folder / f"{shards}x{samples}.unfinished"
        unfinished.mkdir(parents=True)
        number, contents = 0, b"7" + bytes(511)
        for shard in range(shards):
            with open(unfinished / f"s-{shard:06}.tar", "wb") as file:
                for number in range(number, number + samples):
                    for field in FIELDS:
                        file.write(header(b"%010d.%s" % (number, field.encode()), 1) + contents)
                file.write(bytes(1024))
            number += 1
        unfinished.rename(shards_of)
    return shards_of


def mebibytes():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024


def loader(data, rank, ranks, batch_size, workers=2, **options):
    return pinfeed.DataLoader(data, batch_size=batch_size, shuffle=True, seed=17, drop_last=True, num_workers=workers, collate_fn=len,
                              world=pinfeed.World(rank, ranks), **options)


def first(loader):
    began, iterator = time.perf_counter(), iter(loader)
    next(iterator)
    return time.perf_counter() - began, iterator


def index(folder, shards, samples):
    shards, kept = make(folder, shards, samples), folder / f"index-{shards}x{samples}"
    is_kept = kept.exists()
    before, began, busy = mebibytes(), time.perf_counter(), time.process_time()
    data = pinfeed.WebDataset(f"{shards}/", FIELDS, keep_index=kept)
    took, busy = time.perf_counter() - began, time.process_time() - busy
    how = "kept" if is_kept else "made, so this is not the time and memory of one that is kept: once more, please"
    print(f"{len(data)} samples: opened in {took:.3f} s ({busy:.3f} of a core), {mebibytes() - before:.1f} MiB more; the index was {how}")
    files = list(kept.iterdir())
    print(f"{len(files)} files of an index, {sum(file.stat().st_size for file in files)} bytes")


def order():
    class Many:
        def __len__(self):
            return 10**10

        def __getitem__(self, index):
            return index

    before, running = mebibytes(), loader(Many(), 3, 1000, 256)
    took, iterator = first(running)
    for _ in range(99):
        next(iterator)
    state = running.state_dict()
    print(f"10^10 samples, rank 3 of 1,000: first batch after {1e3 * took:.1f} ms, {mebibytes() - before:.1f} MiB more")
    print(f"{len(state['state'])} bytes, as a dict in JSON {len(json.dumps(state))}: {state['state']}")
    resumed = loader(Many(), 3, 960, 256)
    resumed.load_state_dict(state)
    print(f"rank 3 of 960 goes on after {1e3 * first(resumed)[0]:.1f} ms")


class Server(http.server.ThreadingHTTPServer):
    """Ranges of the files of a folder, each `delay` seconds late, and what was asked for."""

    daemon_threads, request_queue_size = True, 512

    def __init__(self, folder, delay):
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder, self.delay, self.lock, self.asked = folder, delay, threading.Lock(), {}
        threading.Thread(target=self.serve_forever, daemon=True).start()
        os.environ["AWS_ALLOW_HTTP"] = "true"
        self.url = f"http://127.0.0.1:{self.server_port}"

    def counted(self):
        with self.lock:
            asked, self.asked = self.asked, {}
        return asked.get("GET", 0), asked.get("bytes", 0)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        file = self.server.folder / self.path.lstrip("/")
        length = file.stat().st_size
        part = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(part[1]), int(part[2]) + 1) if part else (0, length)
        time.sleep(self.server.delay)
        with self.server.lock:
            asked = self.server.asked
            asked[self.command] = asked.get(self.command, 0) + 1
            if self.command == "GET":
                asked["bytes"] = asked.get("bytes", 0) + end - start
        self.send_response(206 if part else 200)
        self.send_header("ETag", f'"{length}"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.send_header("Content-Length", str(end - start))
        if part:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{length}")
        self.end_headers()
        if self.command == "GET":
            with open(file, "rb") as open_file:
                open_file.seek(start)
                self.wfile.write(open_file.read(end - start))

    do_HEAD = do_GET


def served(folder, delay):
    server = Server(make(folder, 100, 1000), delay)
    data = pinfeed.WebDataset(server.url + "/s-{000000..000099}.tar", FIELDS, keep_index=folder / "index-of-server")
    server.counted()
    return server, data


def requests(folder, counts):
    server, data = served(folder, 0)
    for ranks in counts:
        samples = gets = sent = 0
        some = min(ranks, 20)
        for rank in range(some):
            samples += sum(loader(data, rank, ranks, 50, prepare_next=False))
            asked = server.counted()
            gets, sent = gets + asked[0], sent + asked[1]
        print(f"{some} of {ranks} ranks: {samples} samples by {gets} requests, {sent / 1e6:.1f} MB, {sent / samples / 2048:.2f} times what they take", flush=True)


def resume(folder, delay):
    server, data = served(folder, delay / 1e3)
    running = loader(data, 3, 96, 10)
    took, iterator = first(running)
    print(f"rank 3 of 96: first batch after {took:.3f} s")
    for _ in range(9):
        next(iterator)
    state = running.state_dict()
    for _ in iterator:
        pass
    for ranks in (96, 48, 80):
        resumed = loader(data, 3, ranks, 960 // ranks)
        resumed.load_state_dict(state)
        server.counted()
        took, iterator = first(resumed)
        rest = 1 + sum(1 for _ in iterator)
        print(f"goes on as rank 3 of {ranks} after {took:.3f} s; {rest} batches", flush=True)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["index", "order", "requests", "resume"])
parser.add_argument("folder", nargs="?", type=pathlib.Path)
parser.add_argument("--shards", type=int, default=1000)
parser.add_argument("--samples", type=int, default=1000)
parser.add_argument("--ranks", default="8,10,1000")
parser.add_argument("--delay", type=float, default=50, help="milliseconds")
given = parser.parse_args()
if given.what != "order" and given.folder is None:
    parser.error("name a folder for the shards")
match given.what:
    case "index":
        index(given.folder, given.shards, given.samples)
    case "order":
        order()
    case "requests":
        requests(given.folder, [int(ranks) for ranks in given.ranks.split(",")])
    case "resume":
        resume(given.folder, given.delay)
