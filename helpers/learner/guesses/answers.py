"""The declared answers, one file a chapter: they stand here and not in the notebook, where a learner would read them.

    08.stage2:
      answer: 7                     # a number in the question's unit; a choice; or a list, for an order
      zh: 每个 rank 上每个参数占多少字节？
      spoils: [four and one and two]  # optional: what would give it away beside the number with its unit

Where there are choices or an order, `zh` is `{question: …, choices: […]}`: the choices as the call in the notebook has
them, an order as `answer` has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FIELDS = {"answer", "zh", "spoils"}
Answer = float | str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What is known of a question. answer: a number, a choice, or the texts of an order. zh_choices: in that order."""

    key: str
    answer: Answer
    zh: str = ""
    zh_choices: tuple[str, ...] = ()
    spoils: tuple[str, ...] = field(default=())

    @property
    def chapter(self) -> str:
        """ "08"."""
        return self.key.partition(".")[0]


def declared(key: str) -> Declared | None:
    """What is declared for this key, None where nothing is. ValueError for a file that is written wrongly."""
    return all_declared().get(key)


def declared_in(chapter: str) -> tuple[Declared, ...]:
    """The questions of a chapter, "08", in the order of its file, which is the order of the chapter."""
    return tuple(one for one in all_declared().values() if one.chapter == chapter)


@cache
def all_declared(folder: Path = FOLDER) -> dict[str, Declared]:
    """Key -> Declared, over all files. ValueError, with file and key, for what is written wrongly."""
    import yaml  # 20 ms, which an import of this module should not cost

    found: dict[str, Declared] = {}
    for path in sorted(folder.glob("*.yaml")):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        whole = yaml.load(path.read_text(encoding="utf-8"), loader) or {}
        for key, entry in whole.items():
            one = _read(path, key, entry)
            if one.key in found:
                raise ValueError(f"{path.name}: {one.key} is declared twice")
            found[one.key] = one
    return found


def _read(path: Path, key: object, entry: object) -> Declared:
    chapter = path.stem.partition("_")[0]
    if not isinstance(key, str) or not key.startswith(f"{chapter}."):
        raise ValueError(f'{path.name}: the key {key!r} should be a text such as "{chapter}.name", like the file')
    if not isinstance(entry, dict) or "answer" not in entry or set(entry) - FIELDS:
        raise ValueError(f"{path.name}: {key} needs `answer`, and may have {', '.join(sorted(FIELDS))}; got {entry!r}")
    zh, choices = _chinese(path, key, entry.get("zh", ""))
    spoils = tuple(map(str, _listed(entry.get("spoils", ()))))
    return Declared(key=key, answer=_answer(path, key, entry["answer"]), zh=zh, zh_choices=choices, spoils=spoils)


def _answer(path: Path, key: str, answer: Any) -> Answer:
    if isinstance(answer, list) and len(answer) > 1:
        return tuple(map(str, answer))
    if isinstance(answer, bool) or not isinstance(answer, int | float | str) or answer == "":
        raise ValueError(
            f"{path.name}: the answer of {key} is {answer!r}; write a number, a choice in quotes, or a list"
        )
    return answer if isinstance(answer, str) else float(answer)


def _chinese(path: Path, key: str, zh: Any) -> tuple[str, tuple[str, ...]]:
    if isinstance(zh, str):
        return zh, ()
    if not isinstance(zh, dict) or set(zh) - {"question", "choices"} or "question" not in zh:
        raise ValueError(f"{path.name}: zh of {key} is {zh!r}; write a text, or {{question: …, choices: […]}}")
    return str(zh["question"]), tuple(map(str, _listed(zh.get("choices", ()))))


def _listed(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]
