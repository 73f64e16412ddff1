"""JupyterLab on loopback, with folders of its own: no setting of the person or the machine reaches it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from tools import open_lab

START_LIMIT = 60.0  # seconds
PRIVATE = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
# A run that is killed ends nothing: then kernels whose tab is gone end after ten minutes, and a server without kernels.
UNUSED = ("--MappingKernelManager.cull_idle_timeout=600", "--ServerApp.shutdown_no_activity_timeout=600")
# JupyterLab asks jupyter.org for news and PyPI for updates unless this plugin is off.
NO_NEWS = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: where it listens, and the folder of its notebooks."""

    address: str
    token: str
    work: Path

    @property
    def url(self) -> str:
        """Where JupyterLab opens in a fresh layout."""
        return f"{self.address}/lab?token={self.token}&reset"

    def write(self, path: str, *sources: str, **named: str) -> str:
        """Save a notebook with these code cells, named cell-0, cell-1, … or by their keyword; returns `path`."""
        sources = {f"cell-{number}": source for number, source in enumerate(sources)} | named
        cells = [new_code_cell(source, id=name) for name, source in sources.items()]
        kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
        (self.work / path).write_text(nbformat.writes(notebook), encoding="utf-8")
        return path


@contextmanager
def serve(folder: Path) -> Iterator[Lab]:
    """JupyterLab on the notebooks of `folder`/work; ends with its kernels. RuntimeError if it does not answer."""
    work, log, token = folder / "work", folder / "log", secrets.token_hex(8)
    work.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = open_lab.lab_command(work, port=str(port), ip="127.0.0.1", screen=False, root_user=os.getuid() == 0)
    command += ["--expose-app-in-browser", "--JupyterNotebookApp.expose_app_in_browser=True"]
    command += [f"--IdentityProvider.token={token}", "--ServerApp.port_retries=0", *UNUSED]
    with open(log, "w") as output:
        streams = {"stdout": output, "stderr": output}
        server = subprocess.Popen(command, cwd=work, env=_private(folder), start_new_session=True, **streams)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server, log)
        yield Lab(f"http://127.0.0.1:{port}", token, work)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def _private(folder: Path) -> dict[str, str]:
    """The environment of the server. The kernel is still found: its kernelspec lies in Python's own prefix."""
    environment = dict(os.environ) | {f"JUPYTER_{name}": str(folder / name.lower()) for name in PRIVATE}
    environment |= {f"JUPYTERLAB_{name}_DIR": str(folder / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    environment["IPYTHONDIR"] = str(folder / "ipython")
    environment["RANKS_HOME"] = str(folder)  # where a learner's progress is kept
    for name in ("config_dir/labconfig", "data_dir", "runtime_dir", "settings", "workspaces", "ipython"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "config_dir" / "labconfig" / "page_config.json").write_text(json.dumps(NO_NEWS))
    return environment


def _wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab does not answer:\n{log.read_text()[-2000:]}")
