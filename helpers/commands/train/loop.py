"""The loop of a run. Under torchrun every rank follows it, and what all must decide alike they read in all reports."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from helpers.commands.train import on_ranks
from helpers.commands.train.chaos import Chaos
from helpers.commands.train.on_ranks import Report
from helpers.commands.train.options import Settings, checkpoints_of
from helpers.commands.train.screen import Screen, command, say, shown
from helpers.commands.train.stop import Stop
from helpers.compose.checkpoint import step_folder
from helpers.elastic.chaos import Kill
from helpers.ranks import RankError, Ranks
from helpers.ranks.inplace import is_launched, last_words
from helpers.ranks.sites import SAYS

ENDED, FAILED = 0, 1
INTERRUPTED, PREEMPTED = 128 + signal.SIGINT, 128 + signal.SIGTERM


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
        self.stop, self.chaos = Stop(settings.grace), Chaos(settings, done)
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
        self._go_on_from(self.saved)
        last_words("\n".join([say("killed"), *self._left()]))
        self.screen.begin(self.done, self.folder)
        if self.settings.chaos:
            self.screen.line(self.chaos.begin())

    def _go_on_from(self, checkpoint: Path | None) -> None:
        folder, resume = self.folder.resolve(), checkpoint and checkpoint.resolve()  # ranks may stand elsewhere
        told = replace(self.settings, folder=folder, resume=resume)
        answers = self.ranks.run(on_ranks.start, told, self.ranks.device)
        if problem := _first(problem for problem, _ in answers):
            raise ValueError(problem)
        _, self.folder = answers[0]
        self.begun = self.done  # what a rank makes in its first step, it sends no more in the next

    def _train(self) -> int:
        with self.stop as stop:
            problem = self._steps(stop)
            self._report()
            is_done = self.done == self.settings.steps
            is_equal = not self.settings.chaos or self._account(compare=is_done and not stop.asked)
        if is_done and not problem:
            self.screen.lines([say("longer"), f"  {command(self.folder)} --steps {2 * self.settings.steps}"])
        elif self.saved:
            self.screen.lines([say("go_on"), f"  {command(self.saved)}"])
        if problem or not is_equal:
            return FAILED
        return ENDED if is_done or is_launched() else self._asked_by()  # torchrun would take it for a failure

    def _steps(self, stop: Stop) -> str:
        """All that are left, or until somebody wants an end. Why the last save failed, or nothing."""
        asked, told, problem = False, self.settings, ""
        while self.done < told.steps and not asked:
            try:
                reports = self._step(stop.asked)
                asked = any(report.asked for report in reports) if is_launched() else stop.asked
                if asked or self.done == told.steps or self.done % told.save_every == 0:
                    problem = self._save()
            except RankError as error:
                if self.chaos.struck is None:
                    raise error
                self._rise_again(self.chaos.struck)
        return problem

    def _step(self, asked: bool) -> list[Report]:
        number = self.done + 1
        weigh, clock = number == self.weigh_at, number == self.clock_at
        fate = self.chaos.enter("step", number)
        reports = self.ranks.run(on_ranks.step, asked, weigh, clock, *fate)
        self.done = number
        self.chaos.stepped(number, reports[0].loss)
        self.weighed = reports if weigh else self.weighed
        if clock:
            self.clocked, self.is_first = reports, number == self.begun + 1
        self.screen.step(number, reports)
        return reports

    def _save(self) -> str:
        checkpoint = step_folder(self.folder, self.done)
        problem = _first(self.ranks.run(on_ranks.save, checkpoint, *self.chaos.enter("save", self.done)))
        self.chaos.leave("save")
        if problem:
            self.screen.line(say("not_saved", problem=problem))
        else:
            self.saved = checkpoint
            last_words("\n".join([say("killed"), *self._left()]))
        return problem

    def _rise_again(self, kill: Kill) -> None:
        """A rank died as planned, and all are new processes: from the newest checkpoint, or from the beginning."""
        whole = checkpoints_of(self.folder)
        self.done = max([self.first, *whole])
        self.saved = whole.get(self.done, self.settings.resume)
        self._go_on_from(self.saved)
        where = {"rank": kill.rank, "step": kill.step, "done": self.done}
        self.screen.line(say(f"chaos.{kill.during}", **where, seconds=self.chaos.restarted()))

    def _account(self, *, compare: bool) -> bool:
        """What the deaths cost; and whether the losses are those of a run without any, which comes now."""
        self.screen.lines(["", self.chaos.account()])
        if not compare or not self.chaos.num_deaths:
            return True
        self.screen.line(say("chaos.once_more"))
        self._go_on_from(self.settings.resume)
        losses = {}
        for number in range(self.first + 1, self.done + 1):
            if self.stop.asked:
                break
            losses[number] = self.ranks.run(on_ranks.step, False, False, False)[0].loss
        is_equal, told = self.chaos.compared(losses)
        self.screen.line(told)
        return is_equal

    def _report(self) -> None:
        if self.weighed:
            self.screen.memory(self.weigh_at, self.weighed)
        if self.clocked:
            self.screen.sent(self.clock_at, self.clocked, first_step=self.is_first)
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
        return self._asked_by() if interrupted else FAILED

    def _asked_by(self) -> int:
        return PREEMPTED if self.stop.number == signal.SIGTERM else INTERRUPTED

    def _left(self) -> list[str]:
        """The last checkpoint, and how to go on from there."""
        if self.saved is None:
            return []
        return [say("last", checkpoint=shown(self.saved)), say("go_on"), f"  {command(self.saved)}"]

    def _why(self, error: BaseException, interrupted: bool) -> list[str]:
        if interrupted and self.done == self.first:
            return [say("early")]
        asked = say("late", grace=self.stop.grace) if self.stop.is_late else say("interrupted")
        why = [asked] if interrupted else says(error).splitlines()
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
