"""Whether there is a browser: `python -m tests.browser.chromium` succeeds, or says what is missing."""

from __future__ import annotations

import importlib.util
import shutil
import sys

PATH = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)


def why_not() -> str:
    """Empty where there is one."""
    if PATH is None:
        return "there is no Chromium here: install Debian's package chromium"
    return "" if importlib.util.find_spec("playwright") else "playwright is not installed: pip install playwright"


if __name__ == "__main__":
    sys.exit(f"Chapters run under nbval and not in JupyterLab: {why_not()}." if why_not() else 0)
