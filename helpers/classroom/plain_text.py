"""Makes texts of strangers safe to print: control characters are escaped, and long texts and lists are shortened.

File names, printed output, messages of errors and texts of answers come from whoever handed in a notebook. A terminal
would obey the control characters in them, characters that change the direction of writing would make a line look like
a different one, and half of a surrogate pair cannot be written to a file. Flags are remarks for the teacher about a
submission (results.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

MAX_LINE = 300  # characters of a sentence that quotes a stranger
MAX_TEXT = 4_000  # characters of a text of several lines; the rest is dropped
MAX_LISTED = 20  # lines or flags that are shown of one submission, the rest is counted
JOINERS = "\u200c\u200d"  # Persian, words in Indic scripts and some emoji need them, and they do no harm


def one_line(text: str, max_characters: int = MAX_LINE) -> str:
    """The text in one line, at most `max_characters` long, with escapes like \\x1b and \\n for what does not print."""
    return _shortened("".join(map(_printable, text[: max_characters + 1])), max_characters)


def plain_lines(text: str, max_characters: int = MAX_TEXT) -> str:
    """The text with its line breaks and tabs, at most `max_characters` long.

    Everything else that does not print becomes an escape.
    """
    kept = text[: max_characters + 1].replace("\r\n", "\n")
    return _shortened("".join(one if one in "\n\t" else _printable(one) for one in kept), max_characters)


def counted(texts: Sequence[str], max_listed: int = MAX_LISTED) -> list[str]:
    """The first of these texts, and "and 2,994 more" in place of the others."""
    others = len(texts) - max_listed
    return [*texts[:max_listed], f"and {others:,} more"] if others > 0 else list(texts)


def _printable(character: str) -> str:
    """The character, or its escape if it does not print. Spaces of any width are kept."""
    if character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def _shortened(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"
