"""Ray Train with two workers on the CPU: each rank gets its share, and a run that failed goes on from its checkpoint, exactly."""

import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402
import ray.train  # noqa: E402

import pinfeed  # noqa: E402

SAMPLES, BATCH, EPOCHS, FAILS_AT = 48, 3, 2, 11


def made(world):
    return pinfeed.DataLoader(range(SAMPLES), batch_size=BATCH, shuffle=True, seed=5, num_workers=2, world=world, output="numpy")


def train(config):
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    assert pinfeed.World.from_env() == pinfeed.World(rank, size)
    loader, step = made("env"), 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = json.loads(pathlib.Path(folder, "loader.json").read_text())
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    steps = len(loader)
    with open(f"{config['folder']}/{rank}.jsonl", "a") as log:
        while step < EPOCHS * steps:
            for batch in loader:
                print(json.dumps([step, batch.tolist()]), file=log, flush=True)
                step += 1
                if checkpoint is None and step == FAILS_AT:
                    with tempfile.TemporaryDirectory() as folder:
                        pathlib.Path(folder, "loader.json").write_text(json.dumps({"loader": loader.state_dict(), "step": step}))
                        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder) if rank == 0 else None)
                    raise RuntimeError("the machine goes away")
    ray.train.report({"step": step})


def main(kind):
    if kind == "torch":
        from ray.train.torch import TorchTrainer as Trainer
    else:
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer as Trainer

    ray.init(address="local", num_cpus=3, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            train,
            train_loop_config={"folder": folder},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=f"{folder}/runs", failure_config=ray.train.FailureConfig(max_failures=1)),
        ).fit()
        got = [[json.loads(line) for line in pathlib.Path(folder, f"{rank}.jsonl").read_text().splitlines()] for rank in range(2)]
    ray.shutdown()
    ranks = [made(pinfeed.World(rank, 2)) for rank in range(2)]
    expected = [[batch.tolist() for _ in range(EPOCHS) for batch in rank] for rank in ranks]
    # No step twice, none left out, and none of other samples than without the failure.
    assert got == [[[step, batch] for step, batch in enumerate(batches)] for batches in expected]
    half = len(expected[0]) // EPOCHS
    for epoch in range(EPOCHS):
        batches = [batch for rank in got for _, batch in rank[epoch * half : (epoch + 1) * half]]
        assert sorted(sum(batches, [])) == list(range(SAMPLES))  # each sample once over both
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
