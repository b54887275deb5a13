"""Records of a server that gives them in pages: an iterator that says where it stands, so that a resumed run asks for no page twice. The server
is away for a moment."""

import http.server
import json
import threading
import urllib.error
import urllib.request

import pinfeed

asked, away = [], set()


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page = int(self.path.rpartition("/")[2])
        asked.append(page)
        if page in away:
            self.send_error(503)
            return
        body = json.dumps([10 * page + number for number in range(10)] if page < 9 else []).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
threading.Thread(target=server.serve_forever, daemon=True).start()


class Records:
    def __iter__(self):
        return Reading()


class Reading:
    def __init__(self):
        self.page, self.at, self.records = 0, 0, None

    def __iter__(self):
        return self

    def __next__(self):
        if self.records is None or self.at == len(self.records):
            page = self.page if self.records is None else self.page + 1
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/pages/{page}") as answer:
                records = json.load(answer)
            self.page, self.at, self.records = page, 0 if self.records is not None else self.at, records
            if not records:
                raise StopIteration
        self.at += 1
        return self.records[self.at - 1]

    def state_dict(self):
        return {"page": self.page, "at": self.at}

    def load_state_dict(self, state):
        self.page, self.at = state["page"], state["at"]


def loader():
    return pinfeed.DataLoader(Records(), batch_size=8, num_workers=2, output="numpy")


running = loader()
seen = [batch.tolist() for _, batch in zip(range(6), running)]  # 48 records: in the middle of page 4
state = json.loads(json.dumps(running.state_dict()))
running.close()
asked.clear()

resumed = loader()
resumed.load_state_dict(state)
seen += [batch.tolist() for batch in resumed]
first = asked[0]

away.add(5)
iterator, failed, rest = iter(loader()), 0, []
while True:
    try:
        rest += next(iterator).tolist()
    except StopIteration:
        break
    except urllib.error.HTTPError as error:
        failed += 1
        said = error.__notes__[0]
    if failed == 3:
        away.clear()
# (A batch with a record that failed is lost, as it is with any data set; what the server has is not.)
assert rest[:48] == list(range(48)) and rest == sorted(rest)
print(sum(seen, []) == list(range(90)), first, rest[-1], "Records" in said)
