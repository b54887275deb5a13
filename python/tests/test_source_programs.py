"""Ordinary programs, in processes of their own: Parquet, iterables, buckets."""

import pytest


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("house_prices.py", "off by True\n"),
        ("pets_of_the_hub.py", "['cat', 'dog', 'fox'] True\n"),
        ("tokenised_text.py", "80 80 240 True\n"),
    ],
)
def test_parquet(run_program, program, said):
    pytest.importorskip("pyarrow")
    status, out, err = run_program(program)
    assert (status, out) == (0, said), err


def test_shards_in_tracks(run_program, tmp_path):
    status, out, err = run_program("tracks_and_ranks.py", tmp_path)
    assert (status, out) == (0, "6 9 True True\n"), err
    assert "Give tracks 16" in err and "::" not in err, err  # (eight for four ranks are few, the log says)


@pytest.mark.parametrize(
    ("program", "said", "needs"),
    [
        ("json_lines.py", "True True True\n", "json"),
        ("paged_server.py", "True 4 89 True\n", "json"),
        ("streamed_dataset.py", "120 120 True True True\n", "datasets"),
    ],
)
def test_iterables(run_program, program, said, needs):
    pytest.importorskip(needs)
    status, out, err = run_program(program)
    assert (status, out) == (0, said), err
