"""Tar shards in an order of eight open blocks, on two ranks. In mid-epoch a second run goes on with four: every sample came once, in the same order."""

import io
import sys
import tarfile

import pinfeed

folder = sys.argv[1]
for shard in range(12):
    with tarfile.open(f"{folder}/train-{shard:04}.tar", "w") as tar:
        for sample in range(10):
            text = str(10 * shard + sample).encode()
            member = tarfile.TarInfo(f"{shard:04}/{sample:04}.cls")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))


def loaders(ranks):
    data = pinfeed.WebDataset(f"{folder}/train-{{0000..0011}}.tar", ["cls"])
    options = {"batch_size": 8 // ranks, "shuffle": True, "seed": 3, "tracks": 8, "num_workers": 1, "output": "numpy"}
    return [pinfeed.DataLoader(data, world=pinfeed.World(rank, ranks), **options) for rank in range(ranks)]


def steps(loaders):
    """What all ranks have together, step by step."""
    return [sorted(int(number) for (numbers,) in step for number in numbers) for step in zip(*loaders)]


whole = steps(loaders(1))
two = loaders(2)
batches = [iter(loader) for loader in two]
first = [sorted(int(number) for each in batches for number in next(each)[0]) for _ in range(6)]
state = two[0].state_dict()
for loader in two:
    loader.close()

four = loaders(4)
for loader in four:
    loader.load_state_dict(state)
rest = steps(four)
print(len(first), len(rest), first + rest == whole, sorted(sum(whole, [])) == list(range(120)))
