"""Plays a worked interview as a conversation, in which the learner answers before each turn of the candidate.

A `Dialogue` (dialogues.py) has turns of an interviewer and a candidate, and a scorecard at the end.
"""

from __future__ import annotations

from helpers.interview.dialogues import CANDIDATE, Dialogue, scorecard_html, scorecard_text, turn_part, words
from helpers.interview.steps import Ask, Finished, Option, Show, Steps, Talk, Tell, TextPart
from helpers.learner.words import language as chosen_language


class Scorecard:
    """What the interviewer wrote down, as a document."""

    def __init__(self, dialogue: Dialogue, language: str):
        self.text, self._html = scorecard_text(dialogue, language), scorecard_html(dialogue, language)

    def _repr_html_(self) -> str:
        return self._html


class DialogueTalk(Talk):
    """A worked interview. Each question has all turns so far as its parts, with what the learner wrote between them."""

    kind = "dialogue"

    def __init__(self, dialogue: Dialogue, *, language: str | None = None):
        self.dialogue, self.language = dialogue, chosen_language(language)

    def steps(self) -> Steps:
        """The turns, before each of the candidate's a question, then the scorecard."""
        one, language = self.dialogue, self.language
        yield Tell(text=one.title.in_(language), style="bold")
        yield Tell(text=words("intro", language, minutes=one.minutes))
        try:
            yield from self._turn_steps()
        except Finished:
            return
        yield Tell(heading=self._place(len(one.turns) + 1))
        yield Show(document=Scorecard(one, language), can_save=False)

    def _turn_steps(self) -> Steps:
        """Every turn, and a question before the scorecard."""
        shown: tuple[TextPart, ...] = ()
        shows_all = False
        for number, turn in enumerate(self.dialogue.turns, start=1):
            new = [turn_part(turn, self.language)]
            if turn.who == CANDIDATE and not shows_all:
                reply = yield from self.ask(self._question("notes", "ask_own", shown))
                shows_all = reply.action == "all"
                if text := str(reply.value or "").strip():
                    new.insert(0, TextPart(name="own", label=words("own_was", self.language), text=text))
            shown = (*shown, *new)
            yield Tell(heading=self._place(number), parts=tuple(new))
        if not shows_all:
            yield from self.ask(self._question("ready", "ask_scorecard", shown))

    def _question(self, form: str, prompt: str, shown: tuple[TextPart, ...]) -> Ask:
        """The question for the learner's own answer, or whether to go on."""
        actions = (Option(value="all", label=words("all", self.language)),) if form == "notes" else ()
        submit = words("next", self.language)
        return Ask(form=form, parts=shown, prompt=words(prompt, self.language), submit=submit, actions=actions)

    def _place(self, number: int) -> tuple[str]:
        """Which step this is of how many."""
        return (words("place", self.language, number=number, total=len(self.dialogue.turns) + 1),)
