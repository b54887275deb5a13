"""A corpus of JSON lines in files, in another order of files in each epoch, killed in the middle of an epoch and resumed by counting."""

import json
import pathlib
import random
import tempfile

import pinfeed


class JsonLines:
    def __init__(self, folder):
        self.files = sorted(pathlib.Path(folder).glob("*.jsonl"))

    def __iter__(self):
        info = pinfeed.get_worker_info()
        files = list(self.files)
        random.Random(f"{info.seed} {info.epoch}").shuffle(files)
        for path in files[info.rank :: info.world_size]:
            with open(path) as lines:
                for line in lines:
                    row = json.loads(line)
                    if row["words"]:
                        yield {"id": row["id"], "words": len(row["words"].split())}


def loader(folder, num_workers):
    return pinfeed.DataLoader(JsonLines(folder), batch_size=16, seed=11, num_workers=num_workers, output="numpy")


with tempfile.TemporaryDirectory() as folder:
    for file in range(6):
        rows = [{"id": 100 * file + line, "words": "word " * (line % 4)} for line in range(50)]
        pathlib.Path(folder, f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    whole = [batch["id"].tolist() for batch in loader(folder, 0)]
    training = loader(folder, 2)
    seen = []
    for step, batch in enumerate(training):
        seen.append(batch["id"].tolist())
        if step == 6:
            pathlib.Path(folder, "checkpoint.json").write_text(json.dumps(training.state_dict()))
            break
    resumed = loader(folder, 1)
    resumed.load_state_dict(json.loads(pathlib.Path(folder, "checkpoint.json").read_text()))
    seen += [batch["id"].tolist() for batch in resumed]
    following = [batch["id"].tolist() for batch in resumed]
    print(seen == whole, sum(following, []) != sum(whole, []), sorted(sum(following, [])) == sorted(sum(whole, [])))
