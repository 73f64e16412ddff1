"""What a process in the sandbox can do, on each isolation level that this machine allows."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from helpers.classroom import fork_server, isolation
from helpers.classroom import sandbox as sandbox_module
from helpers.classroom.isolation import Limits, LimitWatch
from helpers.classroom.sandbox import Sandbox, SandboxEnded
from helpers.ranks.processes.zygote import FORKS

needs_namespaces = pytest.mark.skipif(not isolation.is_available("namespaces"), reason="namespaces are refused here")
SECRET = "the seed of the class"
# The isolation level "uid" needs a Python that every user may read; a virtual environment in root's home is not one.
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")


def run(isolation_level: str, code: str, home: str, **more) -> subprocess.CompletedProcess:
    """A Python with this code in the sandbox."""
    inside = "/tmp/learner" if isolation_level == "namespaces" else home
    lifeline, ours = os.pipe()
    python = [python_for(isolation_level), "-c", code]
    argument = isolation.launcher_config(isolation_level, python, lifeline=lifeline, home=inside, **more)
    command = [sys.executable, "-I", str(isolation.LAUNCHER), argument]
    try:
        return subprocess.run(command, pass_fds=[lifeline], capture_output=True, text=True, timeout=60)
    finally:
        os.close(lifeline)
        os.close(ours)


def python_for(isolation_level: str) -> str:
    return sys.executable if isolation.is_available(isolation_level) else SYSTEM_PYTHON


@pytest.fixture(params=isolation.ISOLATION_LEVELS)
def launched(request):
    """An isolation level on which some Python starts."""
    can = os.geteuid() == 0 and SYSTEM_PYTHON is not None if request.param == "uid" else False
    if not (can or isolation.is_available(request.param)):
        pytest.skip(f"this machine does not allow the isolation level {request.param!r}")
    return request.param


@pytest.fixture(params=isolation.ISOLATION_LEVELS)
def isolation_level(request):
    if not isolation.is_available(request.param):
        pytest.skip(f"this machine does not allow the isolation level {request.param!r}")
    return request.param


@pytest.fixture
def home():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield folder


def test_the_weakest_isolation_level_is_always_available():
    assert isolation.is_available("plain") and isolation.strictest_available() in isolation.ISOLATION_LEVELS
    assert set(isolation.ISOLATION_TEXTS) == set(isolation.ISOLATION_LEVELS)


def test_its_own_folder_is_writable_and_its_exit_code_comes_out(launched, home):
    done = run(launched, "import os, sys; open('x', 'w').write('1'); print(os.listdir('.')); sys.exit(7)", home)
    assert done.returncode == 7 and "x" in done.stdout, done.stderr


def test_a_signal_that_ended_it_comes_out_as_a_shell_reports_it(launched, home):
    assert run(launched, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", home).returncode == 128 + 9


def test_nothing_of_the_graders_environment_comes_in(launched, home, monkeypatch):
    monkeypatch.setenv("RANK_BY_RANK_SECRET", SECRET)
    done = run(launched, "import os; print(dict(os.environ))", home, env={"HOME": "here"})
    assert SECRET not in done.stdout and "here" in done.stdout


def test_limits_hold(launched, home):
    code = """
import os, resource
print(resource.getrlimit(resource.RLIMIT_FSIZE))
print(os.write(os.open("b", os.O_CREAT | os.O_WRONLY), bytes(2000)))
"""
    done = run(launched, code, home, limits={"RLIMIT_FSIZE": 1000})
    assert done.stdout.split("\n")[:2] == ["(1000, 1000)", "1000"], done


def test_what_it_started_ends_with_it(launched, home):
    mark = f"rank-by-rank-test-{os.getpid()}-{launched}"
    child = f"import time, sys; print({mark!r}); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    assert run(launched, code, home).returncode == 0
    left = [p for p in psutil.process_iter(["cmdline"]) if any(mark in part for part in p.info["cmdline"] or [])]
    assert not left


GRADER = """
import sys, threading
import psutil
from helpers.classroom import fork_server, isolation
from helpers.classroom.sandbox import Sandbox
from helpers.classroom.isolation import Limits
sleep = {"do": "cell", "name": "cell a", "source": "import time; time.sleep(600)", "lines": [1], "seconds": 9.0}
for isolation_level in filter(isolation.is_available, isolation.ISOLATION_LEVELS):
    sandbox = Sandbox({"lab": "03", "checks": ""}, isolation_level=isolation_level, limits=Limits())
    sandbox.start()
    threading.Thread(target=sandbox.ask, args=(sleep, 60), daemon=True).start()
server = psutil.Process(fork_server.fork_server().process.pid)
print(server.pid, *(child.pid for child in server.children(recursive=True)), flush=True)
sys.stdin.read()
"""


def test_when_the_grader_is_killed_nothing_stays():
    """Neither what learners' code runs in, on each isolation level, nor what that was forked from."""
    command = [sys.executable, "-c", GRADER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) >= 4 and all(map(psutil.pid_exists, pids))
        process.kill()
    assert wait_for(lambda: not any(map(psutil.pid_exists, pids))), "a process outlived the grader"


def wait_for(what, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(os.geteuid() != 0 or SYSTEM_PYTHON is None, reason="another user's id is for root to give")
def test_another_user_owns_nothing_and_writes_nowhere_else(home):
    code = f"""
import os
print(os.getuid(), os.getgroups())
for path in ({str(isolation.ROOT / "x")!r}, "/etc/x"):
    try:
        open(path, "w")
        print("wrote", path)
    except PermissionError:
        pass
"""
    done = run("uid", code, home, uid=61_234)
    assert done.stdout == "61234 []\n", done


@needs_namespaces
def test_namespaces_cut_the_network_but_for_loopback(home):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
import socket
for address in (("127.0.0.1", {port}), ("203.0.113.1", 80)):
    try:
        socket.create_connection(address, timeout=3)
        print("connected")
    except OSError as error:
        print(type(error).__name__)
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname(), timeout=3)
    print("loopback works")
"""
        done = run("namespaces", code, home)
    assert "connected" not in done.stdout and "loopback works" in done.stdout, done


@needs_namespaces
def test_namespaces_hide_what_is_private_and_let_nothing_else_be_written(home, tmp_path):
    (tmp_path / "seed").write_text(SECRET)
    solution, readme = isolation.ROOT / "solutions" / "03_ddp.ipynb", isolation.ROOT / "README.md"
    code = f"""
import os, pathlib
for path in ({str(tmp_path / "seed")!r}, {str(solution)!r}, {str(readme)!r}):
    try:
        print(len(open(path).read()), "characters")
    except OSError as error:
        print(type(error).__name__)
for path in ({str(readme)!r}, {str(isolation.ROOT / "x")!r}, "/etc/x", os.path.expanduser("~/x"), "/proc/sys/kernel/x"):
    try:
        open(path, "w").close()
        print("wrote", path)
    except OSError as error:
        pass
"""
    hidden = [str(tmp_path), str(isolation.ROOT / "solutions")]
    done = run("namespaces", code, home, hide=hidden, env={"HOME": "/nowhere"})
    lines = done.stdout.splitlines()
    assert lines[:2] == ["FileNotFoundError"] * 2 and lines[2].endswith("characters"), done
    assert "wrote" not in done.stdout


@needs_namespaces
def test_namespaces_leave_no_power_and_show_no_process_of_others(home):
    code = """
import os, ctypes
status = open("/proc/self/status").read()
print([line for line in status.splitlines() if line.startswith(("CapEff", "CapBnd", "NoNewPrivs"))])
print("processes", len([name for name in os.listdir("/proc") if name.isdigit()]))
libc = ctypes.CDLL(None, use_errno=True)
print("mount", libc.umount(b"/tmp"), libc.mount(b"none", b"/", None, 32, None), libc.unshare(0x10000000 | 0x20000))
"""
    done = run("namespaces", code, home)
    assert done.stdout.count("0000000000000000") == 2 and "NoNewPrivs:\\t1" in done.stdout, done
    assert "processes 2" in done.stdout
    assert "mount -1 -1 -1" in done.stdout


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("import os, time\nwhile os.fork(): pass\ntime.sleep(600)", {"processes": 20}, "20 processes"),
        ("x = []\nwhile True: x.append(bytearray(10**7))", {"memory_bytes": 300_000_000}, "0.3 GB of memory"),
        ("while True: pass", {"cpu_seconds": 1.0}, "1 s of processor time"),
    ],
)
def test_a_watch_ends_what_goes_beyond_its_limits(code, limits, reason, isolation_level, home):
    inside = "/tmp/learner" if isolation_level == "namespaces" else home
    lifeline, ours = os.pipe()
    argument = isolation.launcher_config(isolation_level, [sys.executable, "-c", code], lifeline=lifeline, home=inside)
    command = [sys.executable, "-I", str(isolation.LAUNCHER), argument]
    process = subprocess.Popen(command, pass_fds=[lifeline], stderr=subprocess.DEVNULL)
    os.close(lifeline)
    ended, reasons = threading.Event(), []

    def end(why: str) -> None:
        reasons.append(why)
        os.close(ours)
        ended.set()

    LimitWatch(process.pid, Limits(**limits), end).start()
    assert ended.wait(60)
    process.wait(30)
    assert reason in reasons[0]
    assert not psutil.pid_exists(process.pid)


OPENING = {"lab": "03", "checks": ""}
PEEK = """
import os
files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
raise ValueError(sorted(file.rpartition("/")[2].partition(":")[0] for file in files), os.environ["HOME"])
"""


@pytest.mark.parametrize(
    ("isolation_level", "forks"),
    [*((isolation_level, FORKS) for isolation_level in isolation.ISOLATION_LEVELS), ("plain", False)],
    indirect=["isolation_level"],
)
def test_a_sandbox_answers_and_a_dead_one_says_how_it_ended(isolation_level, forks, monkeypatch):
    monkeypatch.setattr(sandbox_module, "FORKS", forks)
    sandbox = Sandbox(OPENING, isolation_level=isolation_level, limits=Limits())
    try:
        question = {"do": "cell", "name": "cell a", "source": "x = 1 / 0\ny = 2", "lines": [1], "seconds": 5.0}
        answer = sandbox.ask(question, 30)
        assert answer["error"] == "cell a, line 1 raises ZeroDivisionError: division by zero"
        with pytest.raises(SandboxEnded, match="exit code 3"):
            sandbox.ask(question | {"source": "import os\nos._exit(3)", "lines": [1, 2]}, 30)
        assert not Path(sandbox.home).exists()
        assert sandbox.ask(question | {"source": "x = 1"}, 30)["error"] is None, "it starts again"
    finally:
        sandbox.end()


@pytest.mark.skipif(not FORKS, reason="sandboxes are not forked here")
def test_nothing_of_the_fork_server_or_of_other_sandboxes_is_open_inside(isolation_level):
    """Code that could write to the fork server could start processes outside."""
    first, second = (Sandbox(OPENING, isolation_level=isolation_level, limits=Limits()) for _ in range(2))
    try:
        first.start()
        lines = list(range(1, len(PEEK.splitlines()) + 1))
        said = second.ask({"do": "cell", "name": "cell a", "source": PEEK, "lines": lines, "seconds": 5.0}, 30)["error"]
        # its prints, twice; the grader; the zygote of its ranks and what that prints; what lists them
        assert said.count("'socket'") == 2 and said.count("'pipe'") == 2, said
        assert ("/tmp/learner" if isolation_level == "namespaces" else second.home) in said
    finally:
        first.end()
        second.end()


@pytest.mark.skipif(not FORKS, reason="sandboxes are not forked here")
def test_the_fork_server_has_one_thread():
    """Linux refuses a namespace of users to a process with more, and a fork of one may hang."""
    with open(f"/proc/{fork_server.fork_server().process.pid}/status") as status:
        assert "Threads:\t1\n" in status.read()
