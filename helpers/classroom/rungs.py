"""How strictly this system lets learners' code be shut in: the highest rung of a ladder that holds."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = Path(__file__).with_name("launch.py")
RUNGS = ("namespaces", "uid", "plain")
WORDS = {
    "namespaces": "Each notebook ran without network, with every file read-only but its own copy, with the other "
    "submissions and the solutions hidden, and with processes of its own (Linux namespaces).",
    "uid": "This system refuses namespaces, so each notebook ran under another user id. It could not write outside "
    "its copy, but the network was not cut off, and it could read what every user may read: keep submissions, seeds "
    "and checks unreadable for others (chmod 700).",
    "plain": "This system refuses namespaces and another user id, so each notebook ran as you, under limits on time, "
    "memory and processes only. It could read what you can, and use the network; that it changes or deletes your files "
    "or starts programs is refused by Python alone: run this in a container or a virtual machine, with nothing in it "
    "that you would miss.",
}
SPARE_UID = 61_000


def config(rung: str, command: list[str], *, lifeline: int, home: str, keep: tuple[str, ...] = (), **more) -> str:
    """The argument of launch.py. home: the writable folder. keep: what must be seen. more: control, env, limits, …"""
    needed = {str(ROOT), str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve()), *keep}
    defaults = {"control": -1, "env": {}, "limits": {}, "hide": [], "uid": SPARE_UID, "tmpfs_bytes": 512_000_000}
    values = (
        defaults
        | {"rung": rung, "command": command, "lifeline": lifeline, "home": home, "keep": sorted(needed, key=len)}
        | more
    )
    return json.dumps(values)


@functools.cache
def holds(rung: str) -> bool:
    """Whether a Python with this course's packages starts on this rung here. About 0.1 s."""
    if rung == "uid" and os.geteuid() != 0:
        return False
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        inside = "/tmp/home" if rung == "namespaces" else home
        probe = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); import psutil, helpers.quantities.units; print('holds')"
        )
        argument = config(rung, [sys.executable, "-B", "-c", probe], lifeline=read, home=inside)
        command = [sys.executable, "-I", str(LAUNCH), argument]
        try:
            done = subprocess.run(command, pass_fds=[read], capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            return False
        finally:
            os.close(read)
            os.close(write)
    return done.stdout.strip() == "holds"


def highest() -> str:
    """The strictest rung that holds here."""
    return next(rung for rung in RUNGS if rung == "plain" or holds(rung))
