"""Two processes read their shares of a table in a bucket, as torchrun starts them: what they have together is all of it."""

import os
import subprocess
import sys

import pinfeed

if "RANK" not in os.environ:
    ranks = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    shares = [[int(number) for number in rank.communicate()[0].split()] for rank in ranks]
    print(*map(len, shares), sorted(shares[0] + shares[1]) == list(range(200)))
    sys.exit(any(rank.returncode for rank in ranks))

table = pinfeed.Parquet(sys.argv[1], ["id"])
loader = pinfeed.DataLoader(table, batch_size=8, shuffle=True, seed=2, num_workers=2, world="env", output="numpy")
print(*[number for batch in loader for number in batch["id"].tolist()])
