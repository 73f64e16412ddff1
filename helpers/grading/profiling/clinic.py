"""The clinic of lab 10: which six patients a number draws, what a learner sees of them, and the causes to choose from.

No torch, and nothing of what they have: that stands in helpers.commands.broken_jobs and, as a choice from the list, in causes.yaml.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path

from helpers.commands.broken_jobs import BrokenJob, broken_jobs
from helpers.grading.lab_notebooks import MarkdownText
from helpers.learner.words import Words, book, language

SAYS = book("clinic", Path(__file__).parent)
FROM_ONE, FROM_ALL = 2, 4  # of those in which one rank is to blame, and of those in which all are


def drawn(number: int) -> tuple[BrokenJob, ...]:
    """The six of a number, in order of their names. Raises ValueError for what is no whole number."""
    if type(number) is not int:
        raise ValueError(SAYS("no_number", number=repr(number)))
    chance = random.Random(f"clinic {number}")
    one, every = ([p for p in broken_jobs() if (p.rank is None) == is_every] for is_every in (False, True))
    found = chance.sample(one, FROM_ONE) + chance.sample(every, FROM_ALL)
    return tuple(sorted(found, key=lambda patient: patient.name))


@functools.cache
def causes() -> dict[str, Words]:
    """Name of a patient to its cause, as the list says it; what nobody has stands under "other 1" and so on."""
    import yaml  # 20 ms, which an import of this module should not cost

    entries = yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8"))
    named = {name: Words(**said) for name, said in entries["ill"].items()}
    return named | {f"other {i}": Words(**said) for i, said in enumerate(entries["other"], start=1)}


def clinic(number: int, *, lang: str | None = None) -> MarkdownText:
    """The six patients of your number: what a colleague says, what the job prints, its script, how to run it; and the
    causes to choose from. lang: "en" or "zh". Raises ValueError for what is no whole number."""
    lang = language(lang)
    several = [_page(patient, lang) for patient in drawn(number)]
    listed = sorted(causes().values(), key=lambda cause: cause.en)
    lines = [f'- `"{one.en}"`' + (f" {one.zh}" if lang == "zh" else "") for one in listed]
    return MarkdownText(
        "\n\n".join([SAYS("head", lang, number=number), *several, SAYS("causes", lang), "\n".join(lines)])
    )


def _page(patient: BrokenJob, lang: str) -> str:
    """Folded; the script has the numbers of its lines."""
    rows = patient.script.rstrip().split("\n")
    script = "\n".join(f"{number:>2}  {row}".rstrip() for number, row in enumerate(rows, start=1))
    told = {"title": patient.title, "symptom": patient.symptom, "ranks": patient.ranks, "name": patient.name}
    return SAYS("patient", lang, **told, log=patient.log.rstrip(), script=script)
