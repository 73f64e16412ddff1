"""Run a line as an old document prints it, and say in one line what happens: an error, warnings, or nothing."""

from __future__ import annotations

import re
import warnings
from typing import Any

_PLACE = re.compile(r"^\[[^\]]*\] ")  # gloo's place in its own source


def attempt(code: str, **names: Any) -> None:
    """Execute `code` with these names, and print it with what came of it: "TypeError: …" or "runs", and warnings.

    What the code assigns is gone afterwards.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(code, "<as printed>", "exec"), dict(names))
            came = "runs"
        except Exception as error:
            came = f"{type(error).__name__}: {_PLACE.sub('', str(error)).splitlines()[0]}"
    came += "".join(f"\n    warns: {one}" for one in dict.fromkeys(str(one.message) for one in caught))
    print(*(f">>> {line}" for line in code.strip().splitlines()), f"    {came}", sep="\n")
