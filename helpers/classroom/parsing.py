"""Read a text as Python, one thread at a time: two at once, and CPython 3.11 may lose count of how deep each has gone.

It then raises SystemError, "AST constructor recursion depth mismatch" (gh-106905), for a text that is right.
"""

from __future__ import annotations

import ast
import threading

_lock = threading.RLock()


def parse(source: str, name: str = "<unknown>") -> ast.Module:
    """What `ast.parse` gives and raises."""
    with _lock:
        return ast.parse(source, name)
