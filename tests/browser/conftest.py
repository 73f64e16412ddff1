"""A real JupyterLab on a copy of the course, and a real Chromium; skipped where either is missing."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tools import lay_course, open_lab

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
START_LIMIT = 60.0  # seconds


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """The address of a running JupyterLab, with `{path}` for a notebook; its folder is a learner's fresh work/."""
    folder = tmp_path_factory.mktemp("lab")
    work, log, token = folder / "work", folder / "log", secrets.token_hex(8)
    lay_course.lay(ROOT, work)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = open_lab.lab_command(work, port=str(port), ip="127.0.0.1", screen=False, root_user=os.getuid() == 0)
    command += ["--expose-app-in-browser", f"--IdentityProvider.token={token}", "--ServerApp.port_retries=0"]
    with open(log, "w") as output:
        server = subprocess.Popen(command, cwd=work, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server, log)
        yield f"http://127.0.0.1:{port}/lab/tree/{{path}}?token={token}&reset"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    """Return once the server answers; fail with its log if it ends or stays silent."""
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab does not answer:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def chromium():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()
