"""Programs in processes of their own: forks, ends of the interpreter, Ctrl-C."""

import sys

import pytest


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_forked_child_is_told_to_spawn(run_program, num_workers):
    status, out, err = run_program("forked.py", num_workers)
    assert (status, out) == (0, "done\n"), err


@pytest.mark.parametrize(
    ("what", "expected"),
    [("quick", 0), ("sleeps", 0), ("loops", 0), ("catches", 0), ("deleted", 0), ("thread", 0), ("raises", 7)],
)
def test_the_interpreter_ends_while_workers_are_busy(run_program, what, expected):
    status, out, err = run_program("exits.py", what)
    assert status == expected, (status, out, err)
    # (A thread of the program's that waits for a batch is told so, if it comes to that.)
    assert err == "" or (what == "thread" and err.endswith("interpreter is exiting\n"))
    assert out == ("" if what == "raises" else "end 3\n")


@pytest.mark.parametrize("on_error", ["fail", "skip", "replace"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ctrl_c_comes_at_once_and_loses_nothing(run_program, num_workers, on_error):
    status, out, err = run_program("interrupted.py", num_workers, on_error)
    assert status == 0, err
    assert out == "3 [0, 1, 2, 3, 4, 5]\n"


def test_the_doctor_speaks(run_program, pictures):
    import subprocess

    for arguments in ([], [str(pictures)]):
        done = subprocess.run([sys.executable, "-m", "pinfeed.doctor", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for part in ("Cores:", "Memory:", "GPU:", "torch:", "numpy:", "Ranks:"):
            assert part in done.stdout
    assert "24 pictures of 3 classes" in done.stdout
    wrong = subprocess.run([sys.executable, "-m", "pinfeed.doctor", "/nonexistent"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and "/nonexistent" in wrong.stderr


def test_epochs_that_are_opened_and_dropped_leave_nothing():
    import pathlib
    import subprocess

    program = pathlib.Path(__file__).parents[1] / "benches" / "leaks.py"
    done = subprocess.run([sys.executable, str(program), "--epochs", "300", "--check"], capture_output=True, text=True, check=False, timeout=550)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr
