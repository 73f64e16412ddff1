"""Reads the interview cards from `bank/*.yaml`.

A card is a question with its answer. What is wrong in a file becomes one ValueError with file, line, field and how to
fix it. `bank/FORMAT.md` describes the format.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from helpers.interview.cards import Card
from helpers.learner.yaml_file import Fields, read_record, read_yaml

BANK = Path(__file__).parent / "bank"
CARD_START = re.compile(r"^  - id: (\S+)$", re.MULTILINE)  # the line with which a card begins


def chapters(folder: Path = BANK) -> list[str]:
    """Names of the chapters that have a bank, in order: ["00_start_here", ...]."""
    return sorted(path.stem for path in Path(folder).glob("*.yaml"))


def load_bank(chapter: str, folder: Path = BANK) -> tuple[Card, ...]:
    """The cards of one chapter, in the order of the file.

    Raises ValueError with file, line and field when the chapter has no bank or its file does not follow FORMAT.md.
    """
    path = Path(folder) / f"{chapter}.yaml"
    if not path.exists():
        raise ValueError(f"there is no bank for {chapter!r}; the chapters with one are {', '.join(chapters(folder))}")
    state = path.stat()
    return _load_file(path, (state.st_mtime_ns, state.st_size))


def load_all(folder: Path = BANK) -> tuple[Card, ...]:
    """Every card of every chapter. Raises ValueError when two cards share an id."""
    cards = [card for chapter in chapters(folder) for card in load_bank(chapter, folder)]
    seen: dict[str, Card] = {}
    for card in cards:
        if card.id in seen:
            raise ValueError(f"{card.where}: the id {card.id!r} is taken by {seen[card.id].where}; choose another")
        seen[card.id] = card
    return tuple(cards)


def card_ids(folder: Path = BANK) -> dict[str, list[str]]:
    """The ids of the cards of each chapter: {"03_ddp": ["ddp-in-one-minute", ...]}.

    Only the lines with which cards begin are read, because reading all cards takes a hundred times as long.
    """
    return {
        chapter: CARD_START.findall((Path(folder) / f"{chapter}.yaml").read_text(encoding="utf-8"))
        for chapter in chapters(folder)
    }


@functools.lru_cache(maxsize=64)
def _load_file(path: Path, state: tuple[int, int]) -> tuple[Card, ...]:
    """The cards of a file. `state` is its time and size: a file that has not changed is not read again."""
    document, chapter = read_yaml(path), path.stem  # such as 03_ddp
    if not isinstance(document, Fields) or set(document) != {"chapter", "cards"}:
        raise ValueError(f"{path.name}: the file must hold exactly `chapter:` and `cards:` at its top")
    where = document.where
    if document["chapter"] != chapter:
        raise ValueError(f"{where}: `chapter` is {document['chapter']!r} but the file is named {chapter}.yaml")
    if not isinstance(document["cards"], list) or not document["cards"]:
        raise ValueError(f"{where}: `cards` must be a list with at least one card")
    return tuple(read_record(Card, fields, path.name, chapter=chapter) for fields in document["cards"])
