"""Programs in processes of their own: forks, ends of the interpreter, Ctrl-C."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

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
    # (A thread of the program's that waits for a batch is told so, if it comes to that. Python ends such a thread wherever it is, also while it prints.)
    is_told = err.endswith("interpreter is exiting\n") or (err.startswith("Exception in thread") and "Error" not in err)
    assert err == "" or (what == "thread" and is_told), err
    assert out == ("" if what == "raises" else "end 3\n")


@pytest.mark.parametrize("on_error", ["fail", "skip", "replace"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ctrl_c_comes_at_once_and_loses_nothing(run_program, num_workers, on_error):
    status, out, err = run_program("interrupted.py", num_workers, on_error)
    assert status == 0, err
    assert out == "3 [0, 1, 2, 3, 4, 5]\n"


def test_the_doctor_speaks(pictures, tmp_path):
    def doctor(*arguments):
        command = [sys.executable, "-m", "pinfeed.doctor", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    page = tmp_path / "page.html"
    done = doctor(pictures, "--quick", "--html", page)
    assert done.returncode == 0, done.stderr
    for part in ("Built with:", "GPU:", "torch:", "numpy:", "Ranks:", "num_workers", "24 pictures of 3 classes"):
        assert part in done.stdout, done.stdout
    assert "<svg" in page.read_text()
    found = json.loads(doctor("--quick", "--json").stdout)
    assert found["host"]["usable_cores"] >= 1 and found["devices"] and found["decode"]["cpu"], found
    assert found["software"][0].startswith("pinfeed ") and found["pictures"] == []
    for wrong, status in ((("/nonexistent",), 1), (("--html", "/nonexistent/page"), 1), (("--no-such-option",), 2)):
        done = doctor(*wrong)
        assert (done.returncode, done.stdout) == (status, "") and wrong[-1] in done.stderr, done
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_the_doctor_at_once():
    doctor = subprocess.Popen([sys.executable, "-m", "pinfeed.doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(3)  # it measures
    doctor.send_signal(signal.SIGINT)
    out, err = doctor.communicate(timeout=30)
    assert doctor.returncode == -signal.SIGINT and out == b"" and b"Traceback" not in err, (doctor.returncode, err)


def test_epochs_that_are_opened_and_dropped_leave_nothing():
    program = Path(__file__).parents[1] / "benches" / "leaks.py"
    done = subprocess.run([sys.executable, str(program), "--epochs", "300", "--check"], capture_output=True, text=True, check=False, timeout=550)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr
