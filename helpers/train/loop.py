"""The loop of a run. Under torchrun every rank follows it, and what all must decide alike they read in all reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from helpers.ranks import RankError, Ranks
from helpers.ranks.inplace import is_launched, last_words
from helpers.ranks.sites import SAYS
from helpers.train import on_ranks
from helpers.train.on_ranks import Report
from helpers.train.options import Settings
from helpers.train.screen import Screen, command, say, shown
from helpers.train.stop import Stop

ENDED, FAILED, INTERRUPTED = 0, 1, 130


class Loop:
    """One run: `Loop(ranks, settings, done, screen).run()` is the exit code.

    The second step is weighed, since the optimizer has its state then, and the third gives the timeline: a run that is
    interrupted has them too.
    """

    def __init__(self, ranks: Ranks, settings: Settings, done: int, screen: Screen):
        self.ranks, self.settings, self.screen = ranks, settings, screen
        self.done = self.first = done
        self.saved = settings.resume  # the last whole checkpoint
        self.folder = settings.folder
        self.weighed: list[Report] = []
        self.clocked: list[Report] = []
        self.weigh_at, self.clock_at = (min(done + after, settings.steps) for after in (2, 3))

    def run(self) -> int:
        """Raises ValueError where the ranks refuse to start."""
        try:
            self._start()
            return self._train()
        except (RuntimeError, KeyboardInterrupt) as error:  # RankError; under torchrun whatever this rank met
            return self._lost(error)

    def _start(self) -> None:
        folder, resume = self.folder.resolve(), self.saved and self.saved.resolve()  # ranks may stand elsewhere
        told = replace(self.settings, folder=folder, resume=resume)
        answers = self.ranks.run(on_ranks.start, told, self.ranks.device)
        if problem := _first(problem for problem, _ in answers):
            raise ValueError(problem)
        _, self.folder = answers[0]
        last_words("\n".join([say("killed"), *self._left()]))
        self.screen.begin(self.done, self.folder)

    def _train(self) -> int:
        asked, told, problem = False, self.settings, ""
        with Stop() as stop:
            while self.done < told.steps and not asked:
                reports = self._step(stop.asked)
                asked = any(report.asked for report in reports) if is_launched() else stop.asked
                if asked or self.done == told.steps or self.done % told.save_every == 0:
                    problem = self._save()
        self._report()
        if self.done == told.steps:
            self.screen.lines([say("longer"), f"  {command(self.folder)} --steps {2 * told.steps}"])
        elif self.saved:
            self.screen.lines([say("go_on"), f"  {command(self.saved)}"])
        if problem:
            return FAILED
        is_done = self.done == told.steps or is_launched()  # torchrun would take another code for a failure
        return ENDED if is_done else INTERRUPTED

    def _step(self, asked: bool) -> list[Report]:
        number = self.done + 1
        weigh, clock = number == self.weigh_at, number == self.clock_at
        reports = self.ranks.run(on_ranks.step, asked, weigh, clock)
        self.done = number
        self.weighed = reports if weigh else self.weighed
        self.clocked = reports if clock else self.clocked
        self.screen.step(number, reports)
        return reports

    def _save(self) -> str:
        checkpoint = self.folder / f"step_{self.done:05d}"
        problem = _first(self.ranks.run(on_ranks.save, checkpoint))
        if problem:
            self.screen.line(say("not_saved", problem=problem))
        else:
            self.saved = checkpoint
            last_words("\n".join([say("killed"), *self._left()]))
        return problem

    def _report(self) -> None:
        if self.weighed:
            self.screen.memory(self.weigh_at, self.weighed)
        if self.clocked:
            self.screen.sent(self.clock_at, self.clocked, first_step=self.clock_at == self.first + 1)
            self.screen.timeline(self.clock_at, self.clocked, self.folder)
        if self.saved and self.saved != self.settings.resume:
            self.screen.line(say("saved", checkpoint=shown(self.saved)))

    def _lost(self, error: BaseException) -> int:
        """The ranks are gone in the middle of something: what happened, and what is still there."""
        interrupted = isinstance(error, KeyboardInterrupt) or getattr(error, "kind", "") == "interrupted"
        if interrupted:
            self.screen.below_the_key()
        why, left = self._why(error, interrupted), self._left()
        last_words("\n".join([*why, *left]))
        for line in why + left[:1]:
            self.screen.line(line)
        self.screen.lines(left[1:])
        return INTERRUPTED if interrupted else FAILED

    def _left(self) -> list[str]:
        """The last checkpoint, and how to go on from there."""
        if self.saved is None:
            return []
        return [say("last", checkpoint=shown(self.saved)), say("go_on"), f"  {command(self.saved)}"]

    def _why(self, error: BaseException, interrupted: bool) -> list[str]:
        if interrupted and self.done == self.first:
            return [say("early")]
        why = [say("interrupted")] if interrupted else says(error).splitlines()
        unsaved = [say("unsaved" if interrupted else "none")] * (self.saved is None)
        return [say("failed", step=self.done), *why, *unsaved]


def says(error: BaseException) -> str:
    """The failure without what it means for a notebook's variables, which are not there."""
    text = str(error)
    if not isinstance(error, RankError):
        return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
    return text.replace(str(SAYS["after.restarted"]), "").replace(str(SAYS["after.kept"]), "").strip()


def _first(answers: Iterable[str]) -> str:
    """What the first rank said that had something to say."""
    return next(filter(None, answers), "")
