"""Start torchrun as a person does, one agent per machine; here every machine is this one."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Sequence

import psutil

LIMIT = 240  # seconds; a busy machine needs a minute to import torch in four processes


def run_agents(module: str, *agents: Sequence[str], limit: float = LIMIT) -> list[str]:
    """What `torchrun AGENT -m module` prints, all agents together, line by line. agents: options of each.
    module: its name, perhaps with arguments behind it, as one would type them.

    All start at once and meet at a free port. RuntimeError, with what was written, where an agent fails;
    TimeoutError where one has not ended after `limit` seconds. Nothing is tried twice, and no process stays behind.
    """
    command = [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
    started = [
        psutil.Popen([*command, *agent, "-m", *shlex.split(module)], stdout=-1, stderr=-1, text=True)
        for agent in agents
    ]
    _, late = psutil.wait_procs(started, timeout=limit)
    for process in [child for agent in late for child in agent.children(recursive=True)] + late:
        process.kill()
    said = [agent.communicate() for agent in started]
    if late:
        raise TimeoutError(f"{len(late)} of {len(agents)} agents had not ended after {limit} s; {_errors(said)}")
    if any(agent.returncode for agent in started):
        raise RuntimeError(f"an agent failed; {_errors(said)}")
    return [line for out, _ in said for line in out.splitlines() if line]


def free_port() -> int:
    """One that nobody on this machine has; on a cluster you choose one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _errors(said: Sequence[tuple[str, str]]) -> str:
    return "they wrote: " + "\n".join(_ends(err) for _, err in said)


def _ends(text: str, size: int = 4000) -> str:
    """The first and the last characters: a rank's own last words stand before those of its agent."""
    return text if len(text) <= 2 * size else f"{text[:size]}\n…\n{text[-size:]}"
