"""What a rank prints, on its way to the notebook: whole lines, and never more than a notebook can hold."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

from helpers.ranks.sites import names_of

MAX_CHARACTERS = 200_000  # of one run on one rank


class Capture(io.TextIOBase):
    """A text stream that hands whole lines to `send`, and counts what goes beyond the limit instead of sending it."""

    encoding = "utf-8"

    def __init__(self, send: Callable[[str], None]):
        self._send = send
        self._begin()

    def _begin(self) -> None:
        self._parts, self._held, self._sent, self._dropped = [], 0, 0, 0

    def write(self, text: str) -> int:
        if self._sent > MAX_CHARACTERS:
            self._dropped += len(text)
            return len(text)
        kept = text[: 2 * MAX_CHARACTERS]  # before anything is copied: it may be half as long as memory
        self._dropped += len(text) - len(kept)
        self._parts.append(kept)
        self._held += len(kept)
        if "\n" in kept or self._held > MAX_CHARACTERS:
            whole, newline, rest = "".join(self._parts).rpartition("\n")
            if len(rest) > MAX_CHARACTERS:
                whole, newline, rest = whole + newline, rest, ""
            self._emit(whole + newline)
            self._parts, self._held = [rest], len(rest)
        return len(text)

    def _emit(self, text: str) -> None:
        room = MAX_CHARACTERS - self._sent
        self._sent += len(text)
        if room > 0:
            self._send(text[:room])
        self._dropped += max(0, len(text) - max(0, room))

    def finish(self) -> None:
        """End of a run: send the rest, say what was left out, and start counting anew."""
        if self._held:
            self._emit("".join(self._parts))
        if self._dropped:
            self._send(f"\n… and {self._dropped:,} more characters that a notebook could not hold\n")
        self._begin()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


def print_texts(texts: dict[int, str], notes: Iterable[object] = ()) -> None:
    """Print by rank, each line behind its rank; ranks that said the same share their lines. Then the notes."""
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        if text:
            groups.setdefault(text.rstrip("\n"), []).append(rank)
    labels = {text: str(names_of(ranks)) for text, ranks in groups.items()}
    width = max(map(len, labels.values()), default=0)
    for text, label in labels.items():
        for line in text.split("\n"):
            print(f"{label:<{width}} │ {line}".rstrip())
    for one in notes:
        print(one)
