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


def test_the_doctor_explains_a_link(tmp_path):
    from pinfeed import _link

    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    for which, speed, lanes in (("current", "16.0 GT/s PCIe", 8), ("max", "32.0 GT/s PCIe", 16)):
        (folder / f"{which}_link_speed").write_text(speed)
        (folder / f"{which}_link_width").write_text(f"{lanes}\n")
    link, possible = (_link.pcie("00000000:1B:00.0", which, tmp_path) for which in ("current", "max"))
    assert link[:2] == (4, 8) and possible[:2] == (5, 16) and abs(possible[2] - 63.0) < 0.05
    assert _link.pcie("0000:1c:00.0", root=tmp_path) is None
    found = {"locked_to": 13.1, "ordinary_to": 6.0, "locked_back": 13.2, "ordinary_back": 5.0, "own_memory": 936.0, "locking_ms_per_gib": 350.0}
    said = "\n".join(_link.lines(0, {**found, "link": link, "possible": possible}))
    assert "PCIe 4 x8, which allows 15.8 GB/s" in said and "83 %" in said and "could do PCIe 5 x16" in said and "936 GB/s of its data sheet" in said
    assert "does not say" in "\n".join(_link.lines(0, {**found, "link": None, "possible": None}))


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
