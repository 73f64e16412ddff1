"""Start JupyterLab in work/ or WORK at 00_start_here.ipynb; without a screen it prints the address, opens nothing.

Inside a JupyterHub a server is already running: then it only says what to open. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from own_folder import can_write_home, keep_progress, own_folder  # noqa: E402

FIRST = "00_start_here.ipynb"
STYLE = Path(__file__).resolve().parent.parent / "helpers" / "draw" / "static" / "custom"  # our custom.css
LOCAL = ("", "localhost", "127.0.0.1", "::1")


def in_hub(environment: Mapping[str, str]) -> bool:
    """Whether this process runs inside a server that JupyterHub started."""
    return any(name.startswith("JUPYTERHUB_") for name in environment)


def has_screen(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser can be opened here: not over ssh, not in CI, not on a Linux without a display."""
    if "SSH_CONNECTION" in environment or "CI" in environment:
        return False
    return not platform.startswith("linux") or "DISPLAY" in environment or "WAYLAND_DISPLAY" in environment


def lab_command(work: Path, *, port: str, ip: str, screen: bool, root_user: bool) -> list[str]:
    """The command that starts JupyterLab. Raises ValueError if `port` is not a port number."""
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"PORT={port} is not a port: give a number from 1024 to 65535, for example PORT=8890")
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={work}", "--log-level=WARN"]
    command += [f"--LabApp.default_url=/lab/tree/{FIRST}", *_styled()]
    command += [f"--port={port}"] if port else []
    command += [f"--ip={ip}"] if ip else []
    command += [] if screen and ip in LOCAL else ["--no-browser"]
    return command + (["--allow-root"] if root_user else [])


def _styled() -> list[str]:
    """Our style from the first look on, not only from the first explorer on; a person's own custom.css wins."""
    own = Path(os.environ.get("JUPYTER_CONFIG_DIR", Path.home() / ".jupyter")) / "custom"
    if (own / "custom.css").exists():
        return []  # JupyterLab reads one file
    return ["--LabApp.custom_css=True", f"--ServerApp.tornado_settings={{'static_custom_path': [{str(STYLE)!r}]}}"]


# What Jupyter, IPython and matplotlib write in the home unless they are told another folder.
IN_HOME = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR")


def keep_settings(work: Path, environment: MutableMapping[str, str]) -> None:
    """Where the home cannot be written, let JupyterLab and its kernels keep their own files in `work`/.jupyter."""
    for name in () if can_write_home() else IN_HOME:
        folder = Path(environment.setdefault(name, str(work / ".jupyter" / name.lower())))
        folder.mkdir(parents=True, exist_ok=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", default="")
    parser.add_argument("--ip", default="")
    parser.add_argument("--work", default="", help="default: work/ in the repository")
    options = parser.parse_args(arguments)
    try:
        work = own_folder(options.work)
        if in_hub(os.environ):
            print(f"This is a JupyterHub: its own JupyterLab is running. Open {work.name}/{FIRST} in it.")
            return 0
        keep_progress(work, options.work)
        keep_settings(work, os.environ)
        screen = has_screen(os.environ)
        root_user = hasattr(os, "getuid") and os.getuid() == 0
        command = lab_command(work, port=options.port, ip=options.ip, screen=screen, root_user=root_user)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if "--no-browser" in command:
        print("No screen here: open the address below in a browser. Ctrl-C stops the server.", flush=True)
    os.chdir(work)
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
