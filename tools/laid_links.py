"""Links between chapters and labs as they lie in a learner's folder: chapters on top, labs in `labs/` below them.

In the repository both have a folder of their own, side by side, and GitHub shows them from there.
"""

from __future__ import annotations

import re

# What the repository says -> what is true in work/. A chapter leads to labs only, a lab to chapters only.
MOVES = {"../labs/": "labs/", "../notebooks/": "../"}
_LINK = re.compile(rb'(\]\(<?|(?:href|src)=\\?")(\.\./labs/|\.\./notebooks/)')


def as_laid(content: bytes) -> bytes:
    """The content of a notebook file with its links changed."""
    return _LINK.sub(lambda found: found[1] + MOVES[found[2].decode()].encode(), content)
