"""The talks of a page: a quiz, a worked interview or a round, whose steps the page's script plays.

What the learner has answered is a progress file, as on the learner's own machine. Python in a page keeps no file, so
the page's script stores its text in the browser: each talk begins with the text, and each reply returns lines to add.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from helpers.interview.dialogue_talk import DialogueTalk
from helpers.interview.dialogues import dialogue
from helpers.interview.quiz import Quiz
from helpers.interview.steps import Ask, Reply, Steps, Talk, as_json
from helpers.learner import progress

_begun: dict[str, Steps] = {}  # the name of a talk on the page -> its steps
_written = 0  # characters of the progress file that the page has


def start(key: str, kind: str, options: dict[str, Any], language: str, progress_text: str) -> dict[str, Any]:
    """Begin a talk. Returns {"steps": those up to the first question, "added": lines for the page to store}.

    key: the name of the talk on the page. kind, options: as `_talk` takes them. progress_text: what the browser stores.
    Raises ValueError with a sentence where there is no such talk.
    """
    global _written
    path = progress.default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(progress_text, encoding="utf-8")
    _written = len(progress_text)
    _begun[key] = _talk(kind, options, language).steps()
    return _advance(key, None)


def reply(key: str, value: Any, action: str) -> dict[str, Any]:
    """Reply to the question of a talk. Returns the next steps as `start` does, without an Ask if the talk is over."""
    return _advance(key, Reply(value, action))


def _advance(key: str, given: Reply | None) -> dict[str, Any]:
    """The steps up to the next question, and what was written into the progress file meanwhile."""
    global _written
    steps = []
    with suppress(StopIteration):
        step = _begun[key].send(given)
        while not isinstance(step, Ask):
            steps.append(step)
            step = next(_begun[key])
        steps.append(step)
    text = progress.default_path().read_text(encoding="utf-8")
    added, _written = text[_written:], len(text)
    return {"steps": [as_json(step) for step in steps], "added": added}


def _talk(kind: str, options: dict[str, Any], language: str) -> Talk:
    """A talk of this kind: "quiz" with options of `Quiz`, "dialogue" or "round" with the option `name`."""
    if kind == "quiz":
        return Quiz(language=language, **options)
    if kind == "dialogue":
        return DialogueTalk(dialogue(options["name"], language), language=language)
    if kind == "round":
        from helpers.interview.round_attempt import new_attempt  # imports the calculators
        from helpers.interview.round_items import choose_round

        return new_attempt(choose_round(options["name"], language), language=language)
    raise ValueError(f'there is no talk of the kind {kind!r}; give "quiz", "dialogue" or "round"')


# -- import ----------------------------------------------------------------------------------------------------------
def merge(stored: str, given: str) -> dict[str, Any]:
    """Compare another progress file with the stored one.

    Returns {"added": the lines of `given` that are new, for the page to store, "num_added": how many they are,
    "num_known": how many were stored before, "num_unreadable": how many are no lines of a progress file}.
    """
    lines = list(filter(str.strip, given.split("\n")))
    readable = list(dict.fromkeys(line.strip() for line in lines if progress.entries_in(line).entries))
    known = set(stored.split("\n"))
    new = [line for line in readable if line not in known]
    return {
        "added": "".join(f"{line}\n" for line in new),
        "num_added": len(new),
        "num_known": len(readable) - len(new),
        "num_unreadable": progress.entries_in(given).num_skipped,
    }
