"""Starts one process in a sandbox: `python -I launcher.py CONFIG`, with CONFIG in JSON (isolation.py writes it).

At every level the process gets a clean environment, the limits, no capability and no right to gain one (on Linux).
The isolation levels add to this:

namespaces   own users, processes, network and mounts: only loopback, files read-only except a small /tmp, hidden paths
             empty. For root, and for other users if the kernel allows it.
uid          another user's id, for root in a container. The network stays.
plain        nothing more.

The lifeline is the read end of a pipe whose other end the grader holds. It closes when the grader closes it or dies.
Everything that the process started ends when the process ends, or when the lifeline closes.

The keys of the configuration:

isolation_level   one of the three above
command           the command line to run; the fork server (fork_server.py) gives a function under "run" instead
control           file descriptor of the socket to the grader, -1 for none; all others but 0, 1 and 2 are closed
lifeline          file descriptor of the lifeline
home              the folder in which the process runs and may write; at the level "namespaces" it must lie in one of
                  the TEMPORARY folders, because everything else is read-only there
hide, keep        paths that must be empty for the process, and paths below them that must stay visible
env, limits       environment variables, and resource limits such as {"RLIMIT_CPU": 400}
uid               the user id for the level "uid"
tmpfs_bytes       size of /tmp at the level "namespaces"

This file uses the standard library only, so that it starts fast and in any Python.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

# Constants of Linux's system calls (unshare, mount, prctl, mount_setattr, capset), as in the headers of the kernel.
NEW_USER, NEW_MOUNTS, NEW_PIDS, NEW_NETWORK, NEW_IPC = 0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000
NEW_OTHERS = NEW_MOUNTS | NEW_PIDS | NEW_NETWORK | NEW_IPC
MS_BIND, MS_RECURSIVE, MS_PRIVATE_ALL, NO_SUID_DEV = 0x1000, 0x4000, 0x40000 | 0x4000, 0x2 | 0x4
SET_DEATH_SIGNAL, SET_DUMPABLE, DROP_BOUND, SET_SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
SYS_MOUNT_SETATTR, SYS_CAPSET = 442, 126 if os.uname().machine == "x86_64" else 91
AT_RECURSIVE, CAPABILITY_3 = 0x8000, 0x20080522
# Folders for temporary files. At the level "namespaces" each of them is an empty file system in memory.
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")
LARGE_TEMPORARY = ("/tmp", "/dev/shm")  # these get tmpfs_bytes, the others 1 MB


def main(config: dict) -> int:
    """Start the process and wait for its end. Returns its exit code.

    A negative code -n means that signal n ended the process; `exit_status` makes it what a shell reports. 124 means
    that the lifeline was closed. In two cases the sandbox did not start: the process ends with 125 if it could not be
    turned into the command, and the launcher ends with 126 if its own setup failed, such as that of the namespaces.
    """
    if sys.platform.startswith("linux"):
        _libc().prctl(SET_SUBREAPER, 1, 0, 0, 0)  # orphans become children of this process, which can then end them
    if config["isolation_level"] == "namespaces":
        return _run_in_namespaces(config)
    child = os.fork()
    if child == 0:
        _become_command(config)
    status = _wait_for(child, config["lifeline"])
    _end_descendants(child)
    return status


def exit_status(code: int) -> int:
    """The status with which a process reports an exit code: 128 + number for a signal, as a shell does."""
    return code if code >= 0 else 128 - code


def _run_in_namespaces(config: dict) -> int:
    """Make new namespaces and run the command in them. Returns its exit code."""
    uid, gid = os.getuid(), os.getgid()
    has_user_namespace = _libc().unshare(NEW_USER | NEW_OTHERS) == 0
    if not has_user_namespace:  # root can make the other namespaces without one
        _raise_if_failed(_libc().unshare(NEW_OTHERS), "unshare")
    else:  # the user keeps its ids inside; the kernel takes a gid_map only after setgroups was denied
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    first = os.fork()
    if first == 0:
        os._exit(exit_status(_run_first_process(config)))
    with suppress(OSError):
        # Process 1 and the command inherited the socket. Without this copy it closes once those two have ended, and
        # the end of the command ends process 1, so the grader sees the end of the command at once.
        os.close(config["control"])
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])


def _run_first_process(config: dict) -> int:
    """Run as process 1 of the new namespaces: set up their mounts, run the command, and return its exit code.

    When process 1 ends, the kernel kills all other processes of the namespaces.
    """
    # The order matters. Mounts become private before the first new one, or the machine would see it. The limit on
    # namespaces is written before /proc is read-only. The empty folders are mounted after all else is read-only, so
    # that they alone can be written, and `home` may lie in one of them.
    _libc().prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # this process is killed when its parent dies
    _libc().prctl(SET_DUMPABLE, 0, 0, 0, 0)  # the command cannot look into this process through /proc
    _loopback_up()
    _mount("none", "/", None, MS_PRIVATE_ALL)  # mounts from here on are seen in this namespace only
    _mount("proc", "/proc", "proc", NO_SUID_DEV)
    with suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # the command cannot make namespaces of its own
    # struct mount_attr of the kernel: set the attribute 1, MOUNT_ATTR_RDONLY. -100 is AT_FDCWD, 32 the struct's size.
    read_only = struct.pack("QQQQ", 1, 0, 0, 0)
    _raise_if_failed(_libc().syscall(SYS_MOUNT_SETATTR, -100, b"/", AT_RECURSIVE, read_only, 32), "mount_setattr")
    for path in sorted({*TEMPORARY, *config["hide"]}, key=len):  # a folder comes before what is below it
        _cover(path, config)
    os.makedirs(config["home"], exist_ok=True)
    child = os.fork()
    if child == 0:
        _become_command(config)
    return _wait_for(child, config["lifeline"])


def _cover(path: str, config: dict) -> None:
    """Hide `path` below an empty file or folder, except the paths below it that must be kept.

    Each kept path is opened before it is covered, so that it can be mounted again from its descriptor.
    """
    if os.path.islink(path) or not os.path.exists(path) or path in config["keep"]:
        return
    if not os.path.isdir(path):
        return _mount("/dev/null", path, None, MS_BIND)
    kept = [(name, os.open(name, os.O_PATH)) for name in config["keep"] if name.startswith(path.rstrip("/") + "/")]
    size = config["tmpfs_bytes"] if path in LARGE_TEMPORARY else 1_000_000  # bytes
    _mount("tmpfs", path, "tmpfs", NO_SUID_DEV, f"size={size},mode=777")
    for name, descriptor in kept:
        os.makedirs(name, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", name, None, MS_BIND | MS_RECURSIVE)
        os.close(descriptor)


def _become_command(config: dict) -> None:
    """Turn this process into the command, with fewer rights than it has now. Never returns."""
    # The order matters. The user id changes while the process may still do so, that is before it drops capabilities,
    # and before the death signal is set, because the kernel clears that signal when the user changes. The change to
    # `home` comes last, with the rights that the command will have.
    try:
        os.setsid()  # a process group of its own, which `_end_descendants` kills
        close_all_but(config["control"])
        os.environ.clear()
        os.environ.update(config["env"])
        if config["isolation_level"] == "uid":
            os.setgroups([])
            os.setgid(config["uid"])
            os.setuid(config["uid"])
        for name, value in config["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]  # a limit above the hard one is refused
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (limit, limit))
        if sys.platform.startswith("linux"):
            _drop_capabilities()
            _libc().prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.chdir(config["home"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if "run" not in config:
            os.execv(config["command"][0], config["command"])
        os._exit(config["run"]())
    except BaseException as error:
        os.write(2, f"the sandbox did not start: {error!r}\n".encode())
    os._exit(125)


def close_all_but(*kept: int) -> None:
    """Close every file descriptor except these and the first three (standard input, output and error)."""
    edges = sorted({2, *(one for one in kept if one > 2), os.sysconf("SC_OPEN_MAX")})
    for before, after in zip(edges, edges[1:], strict=False):  # each gap between two kept ones
        os.closerange(before + 1, after)


def _drop_capabilities() -> None:
    """Give up all rights of root, and the right to gain new ones by starting a program."""
    for capability in range(64):  # Linux has about 40; an unknown number is an error that does no harm
        _libc().prctl(DROP_BOUND, capability, 0, 0, 0)
    header, nothing = struct.pack("Ii", CAPABILITY_3, 0), bytes(24)  # 0: this process; the bytes: empty sets of rights
    _libc().syscall(SYS_CAPSET, header, nothing)
    _libc().prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _wait_for(child: int, lifeline: int) -> int:
    """Wait until the child has ended or the lifeline is closed, and collect orphans meanwhile.

    Returns the exit code as `main` does.
    """
    # When a child ends, Python writes a byte into this pipe, which wakes up the `select` below.
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return os.waitstatus_to_exitcode(ended[1])
        readable, _, _ = select.select([lifeline, wake_read], [], [], 1.0)
        if lifeline in readable:
            return 124
        if wake_read in readable:
            os.read(wake_read, 4096)


def _end_descendants(child: int) -> None:
    """Kill the processes below this one until none is left.

    Each is stopped before it is killed, so it cannot fork on.
    """
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    for _ in range(200):  # about one second in all
        below = _descendants(os.getpid())
        if not below:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                with suppress(OSError):
                    os.kill(pid, number)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _descendants(root: int) -> list[int]:
    """The process ids of all children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        with suppress(OSError, ValueError):  # ValueError: the entry is no process
            with open(f"/proc/{int(name)}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])  # "pid (name) state parent …"
            children.setdefault(parent, []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _loopback_up() -> None:
    """Switch on the loopback interface, the only network of the namespace, over which the ranks communicate."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        # The bytes are a struct ifreq: the name of the interface in 16 bytes, its flags, and padding.
        fcntl.ioctl(handle, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount `source` at `target`. kind: of a new file system; None if `flags` say what happens. data: its options."""
    arguments = [text.encode() if text is not None else None for text in (source, target, kind)]
    result = _libc().mount(*arguments, ctypes.c_ulong(flags), data.encode() if data else None)
    _raise_if_failed(result, f"mount {target}")


def _raise_if_failed(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    try:
        code = main(json.loads(sys.argv[1]))
    except OSError as error:
        os.write(2, f"the sandbox did not start: {error}\n".encode())
        code = 126
    os._exit(exit_status(code))
