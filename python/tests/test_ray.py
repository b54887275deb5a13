"""Ray Train, with two workers on the CPU. `ci/python.sh` installs it; elsewhere: `pip install "ray[train]"`."""

import importlib.util
import os

import pytest

import pinfeed

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'ray[train]'")


@needs_ray
@pytest.mark.parametrize("kind", ["plain", pytest.param("torch", marks=pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="without torch"))])
def test_ranks_and_resume_under_ray_train(run_program, tmp_path, kind):
    # (Ray keeps a token in the home folder. Ranks of other launchers are inherited, and are none of its workers'.)
    environment = {**os.environ, "HOME": str(tmp_path), "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"}
    status, out, err = run_program("ray_train.py", kind, timeout=400, env=environment)
    assert status == 0 and out.endswith("done\n"), err


@needs_ray
def test_outside_of_its_workers_ray_says_nothing():
    import ray.train  # noqa: F401

    assert pinfeed.World.from_env() == pinfeed.World(0, 1)
