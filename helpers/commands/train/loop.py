"""Runs the training loop of `train`: steps, saves, restarts after a planned death, and the report at the end.

`ranks.run(function, …)` calls a function of on_ranks.py on every rank and returns what each rank gave. Under torchrun
there is no main process, so every rank runs this loop. A decision that all ranks must take alike depends on the reports
of all ranks, which each of them has. With --chaos ranks are killed on purpose; such a planned death is a `Kill`.
`words` and `rank_words` hold the texts in the reader's language.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from helpers.commands.train import on_ranks
from helpers.commands.train.chaos import Chaos
from helpers.commands.train.on_ranks import StepReport
from helpers.commands.train.options import TrainOptions, checkpoints_of
from helpers.commands.train.screen import Screen, command, shown, words
from helpers.commands.train.signals import StopRequest
from helpers.compose.checkpoint import step_folder
from helpers.elastic.chaos import Kill
from helpers.ranks import RankError, Ranks
from helpers.ranks.board.sites import words as rank_words
from helpers.ranks.inplace import write_error_file
from helpers.ranks.processes.spec import launched

ENDED, FAILED = 0, 1  # exit codes
INTERRUPTED, PREEMPTED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit codes, as a shell gives them for a signal


class Loop:
    """One run. `Loop(ranks, settings, done, screen).run()` returns the exit code.

    done: how many steps are done; at first, the steps that the checkpoint has behind it, which `first` keeps.
    saved: the newest complete checkpoint, None if there is none. folder: where this run saves.
    stop: whether a signal asked to stop. chaos: the planned deaths and their cost.
    started_at: the step after which the ranks were started last. is_first: whether the step of the timeline is the
    first one after a start, in which the ranks also send what is sent only once.

    Memory is measured in the second step, when the optimizer has its state, and the timeline is recorded in the third,
    so that a run that is interrupted later has both.
    """

    def __init__(self, ranks: Ranks, settings: TrainOptions, done: int, screen: Screen):
        self.ranks, self.settings, self.screen = ranks, settings, screen
        self.done = self.first = done
        self.saved, self.folder = settings.resume, settings.folder
        self.stop, self.chaos = StopRequest(settings.grace), Chaos(settings, done)
        self.memory_reports: list[StepReport] = []
        self.timeline_reports: list[StepReport] = []
        self.memory_step, self.timeline_step = (min(done + after, settings.steps) for after in (2, 3))

    def run(self) -> int:
        """Runs to the end and returns the exit code. Raises ValueError where the ranks refuse to start."""
        try:
            self._start()
            return self._train()
        except (RuntimeError, KeyboardInterrupt) as error:  # a RankError, or under torchrun any error of this rank
            return self._report_failure(error)

    def _start(self) -> None:
        self._start_trainers(self.saved)
        # torchrun shows this file if it has to kill the ranks, which can then say nothing more.
        write_error_file("\n".join([words("killed"), *self._resume_lines()]))
        self.screen.begin(self.done, self.folder)
        if self.settings.chaos:
            self.screen.line(self.chaos.begin())

    def _start_trainers(self, checkpoint: Path | None) -> None:
        """Makes a trainer on every rank, from this checkpoint or anew. Raises ValueError where a rank refuses."""
        folder, resume = self.folder.resolve(), checkpoint and checkpoint.resolve()  # ranks have other working folders
        options = replace(self.settings, folder=folder, resume=resume)
        answers = self.ranks.run(on_ranks.start, options, self.ranks.device)
        if problem := _first(problem for problem, _ in answers):
            raise ValueError(problem)
        _, self.folder = answers[0]
        self.started_at = self.done

    def _train(self) -> int:
        """Runs the steps, then prints the report and how to go on. Returns the exit code."""
        with self.stop as stop:
            problem = self._steps(stop)
            self._report()
            is_done = self.done == self.settings.steps
            is_equal = True
            if self.settings.chaos:
                is_equal = self._account(compare=is_done and not stop.is_requested)
        if is_done and not problem:
            self.screen.lines([words("longer"), f"  {command(self.folder)} --steps {2 * self.settings.steps}"])
        elif self.saved:
            self.screen.lines([words("go_on"), f"  {command(self.saved)}"])
        if problem or not is_equal:
            return FAILED
        # Under torchrun the code is 0, too, because torchrun would take a signal's code for a failure.
        return ENDED if is_done or launched() else self._signal_code()

    def _steps(self, stop: StopRequest) -> str:
        """Runs the steps that are left, or until a stop is requested. Returns why the last save failed, or ""."""
        must_stop, options, problem = False, self.settings, ""
        while self.done < options.steps and not must_stop:
            try:
                reports = self._step(stop.is_requested)
                # Under torchrun a signal may have reached only some ranks, so the reports of all ranks decide.
                must_stop = any(report.stop_requested for report in reports) if launched() else stop.is_requested
                if must_stop or self.done == options.steps or self.done % options.save_every == 0:
                    problem = self._save()
            except RankError as error:
                if self.chaos.struck is None:  # no death was planned here
                    raise error
                self._restart_after(self.chaos.struck)
        return problem

    def _step(self, stop_requested: bool) -> list[StepReport]:
        """Runs the next step on all ranks and prints the progress. Returns the reports in the order of the ranks."""
        number = self.done + 1
        with_memory, with_timeline = number == self.memory_step, number == self.timeline_step
        kill, usual_seconds = self.chaos.enter("step", number)  # kill: None if no death is planned in this step
        reports = self.ranks.run(on_ranks.step, stop_requested, with_memory, with_timeline, kill, usual_seconds)
        self.done = number
        self.chaos.stepped(number, reports[0].loss)
        self.memory_reports = reports if with_memory else self.memory_reports
        if with_timeline:
            self.timeline_reports, self.is_first = reports, number == self.started_at + 1
        self.screen.step(number, reports)
        return reports

    def _save(self) -> str:
        """Saves a checkpoint of the present step. Returns why that failed, or ""."""
        checkpoint = step_folder(self.folder, self.done)
        problem = _first(self.ranks.run(on_ranks.save, checkpoint, *self.chaos.enter("save", self.done)))
        self.chaos.leave("save")
        if problem:
            self.screen.line(words("not_saved", problem=problem))
        else:
            self.saved = checkpoint
            write_error_file("\n".join([words("killed"), *self._resume_lines()]))
        return problem

    def _restart_after(self, kill: Kill) -> None:
        """Starts all ranks, which are new processes after a death, from the newest checkpoint or from the beginning."""
        complete = checkpoints_of(self.folder)
        self.done = max([self.first, *complete])
        self.saved = complete.get(self.done, self.settings.resume)
        self._start_trainers(self.saved)
        values = {"rank": kill.rank, "step": kill.step, "done": self.done}
        self.screen.line(words(f"chaos.{kill.during}", **values, seconds=self.chaos.restarted()))

    def _account(self, *, compare: bool) -> bool:
        """Prints what the deaths cost. Returns False if they have changed a loss.

        compare: whether to find that out, for which all steps are trained once more without deaths.
        """
        self.screen.lines(["", self.chaos.account()])
        if not compare or not self.chaos.num_deaths:
            return True
        self.screen.line(words("chaos.once_more"))
        self._start_trainers(self.settings.resume)
        losses = {}
        for number in range(self.first + 1, self.done + 1):
            if self.stop.is_requested:
                break
            # No request to stop, no recorded memory, no recorded timeline, and no planned death.
            losses[number] = self.ranks.run(on_ranks.step, False, False, False)[0].loss
        is_equal, sentence = self.chaos.compared(losses)
        self.screen.line(sentence)
        return is_equal

    def _report(self) -> None:
        """Prints the memory, the bytes sent and the timeline, as far as they were recorded, and where the run is."""
        if self.memory_reports:
            self.screen.memory(self.memory_step, self.memory_reports)
        if self.timeline_reports:
            self.screen.sent(self.timeline_step, self.timeline_reports, first_step=self.is_first)
            self.screen.timeline(self.timeline_step, self.timeline_reports, self.folder)
        if self.saved and self.saved != self.settings.resume:
            self.screen.line(words("saved", checkpoint=shown(self.saved)))

    def _report_failure(self, error: BaseException) -> int:
        """The ranks ended inside a step: prints what happened and which checkpoint there is. Returns the exit code."""
        interrupted = isinstance(error, KeyboardInterrupt) or getattr(error, "kind", "") == "interrupted"
        if interrupted:
            self.screen.new_line_after_interrupt()
        reasons, resume = self._reasons(error, interrupted), self._resume_lines()
        write_error_file("\n".join([*reasons, *resume]))
        for line in reasons + resume[:1]:
            self.screen.line(line)
        self.screen.lines(resume[1:])  # the command is printed unwrapped, so that it can be copied
        return self._signal_code() if interrupted else FAILED

    def _signal_code(self) -> int:
        """The exit code after a signal."""
        return PREEMPTED if self.stop.number == signal.SIGTERM else INTERRUPTED

    def _resume_lines(self) -> list[str]:
        """Lines that name the newest checkpoint and the command that resumes from it."""
        if self.saved is None:
            return []
        return [words("last", checkpoint=shown(self.saved)), words("go_on"), f"  {command(self.saved)}"]

    def _reasons(self, error: BaseException, interrupted: bool) -> list[str]:
        """Lines that say why the run has ended. interrupted: by a signal, rather than by a failure."""
        if interrupted and self.done == self.first:
            return [words("early")]
        if not interrupted:
            reasons = failure_message(error).splitlines()
        elif self.stop.is_late:
            reasons = [words("late", grace=self.stop.grace)]
        else:
            reasons = [words("interrupted")]
        if self.saved is None:
            reasons.append(words("unsaved" if interrupted else "none"))
        return [words("failed", step=self.done), *reasons]


def failure_message(error: BaseException) -> str:
    """The message of a failure, without the sentences about a notebook's variables, since there is no notebook."""
    text = str(error)
    if not isinstance(error, RankError):
        return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
    for name in ("restarted", "stopped", "kept"):
        text = text.replace(str(rank_words[f"after.{name}"]), "")
    return text.strip()


def _first(answers: Iterable[str]) -> str:
    """The first answer that is not empty; "" if all are."""
    return next(filter(None, answers), "")
