"""The grader: `check("03.average", average_gradients)` in a lab's cell.

How a check is written
======================
One folder a lab, named as its topic. Its `__init__.py` holds one record, `LAB = Lab(number="03", topic="ddp", …)`: the
tasks, and what of torch's the lab forbids. A folder with a LAB is a lab; no list is kept. What several labs use stands
in kit/, and their folders do not import each other.
A task has three parts, so that the same check serves the learner's notebook and a class of strangers:

1. `make(rng, world_size) -> [dict, ...]`, beside the judge: the inputs of each rank, plain data (tensors, numbers,
   strings, lists), drawn from `rng`, a torch.Generator. float64, so that any order of additions passes; sizes that
   differ between ranks and that the world size does not divide, where the task is about that.
2. `act(submitted, inputs, trial) -> outputs`, on every rank, beside the learner's code: builds what is needed from this
   rank's inputs, calls `submitted`, returns plain data. It decides nothing. `trial.rank`, `trial.world_size`;
   `trial.mark("…")` notes an instant on the clock of the log. Exceptions pass through; what the ranks send is recorded.
3. `judge(world)`, back in the judging process, yields Findings. `world.size`; `world.inputs`, `world.outputs`,
   `world.logs` (a CommLog a rank, in the order of issuing) and `world.marks`, each in rank order. Compute what ONE
   process gives and compare every rank with the functions of kit/judging.py, each of which returns or yields Findings:

       for rank, output in enumerate(world.outputs):
           yield expect_tensor("the mean", mean, output["mean"], rank=rank, mistakes={"sum_for_mean": total})
       yield from expect_ops(world, "all_reduce", 1)

   Never trust the outputs: a cheat writes them. Judge what only right work gives.

Hints: a dict, `{"sum_for_mean": Words(en="…", zh="…")}`, key = the mistake; our labs keep theirs in `hints.yaml`, and
`LAB.hints("sum_for_mean", …)` takes those of a task. A mistake is recognised by the value that it would give
(`mistakes={key: value}`), by the log (`expect_ops(..., mistakes={key: count})`, `expect_payload`,
`expect(ok, en, zh, mistakes=(key,))`), or by the failure: `recognise(trouble) -> [key, ...]`, for
example `["both_receive_first"] if trouble.kind == "hang" and trouble.is_waiting_in("recv") else []`. Of several, the one
that explains most world sizes is shown; of equals, the one that stands first: put the specific ones first.
A case that no mistake explains whole gets no hint, and no mutant may draw another's: tests/grading/test_mutants.py.
A sentence about a value has both languages: `Words(en="the gradient of {}", zh="{} 的梯度").format(name)`. What
`expect` says is read behind "on rank 1 of 3 " (or "with 3 ranks ", without a rank). kit/making.py draws numbers.

Each hint has a mutant in `tests/mutants/NN_topic.yaml`: who makes this mistake and why, and which lines of the solution
it changes. `tests/right_answers/NN_topic/<style>.py` holds other right ways (`TASK = "03.average"` and the function).
tests/grading runs them all, and tests/grading/submissions.py says how both are written. How a wrong value is said is in
kit/telling.py; `expect_tensor(…, before=tensor)` tells one that was to be changed in place and was not.

A task in one process, with simulated devices, has `unit="device"`: world_sizes counts devices, `make(rng, devices)`
returns one dict for all of them, in a list, and the `rank` of a Finding is a device.

A chapter's cell asks `exercise("03.average", average_gradients)`: the same judge, but nothing raises. A task that is
too small for the lab stands in the same folder and in `in_chapter` of the LAB; a chapter without a lab has a LAB with
these alone. Its answer is the folded one of the chapter; its mutants and right answers lie where those of the labs do.

`grade(key, function) -> Verdict` is the same without a notebook; `runner=` lets another process act (class grading):
a callable `(inputs, seed) -> Run`. A check runs on ranks of its own: 0.02 to 1 s, 2 s for the first. A
rank that computes for more than `cpu_seconds` is ended, as is a check of more than `seconds`, and walls/ keeps the
learner's machine whole; keep torch.optim out of `act`, its first import takes a second.
"""

from helpers.grading.check import NotYet, check, grade
from helpers.grading.exercise import exercise
from helpers.grading.offers import rubric, solution
from helpers.grading.overview import drill, mock_view, progress_view
from helpers.grading.registry import Lab, chapters_with_tasks, exercises_of, lab_of, labs, task_of, tasks_of
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task, TaskRun
from helpers.grading.verdict import Verdict
from helpers.learner.words import Words

__all__ = [
    "Judgement",
    "Lab",
    "NotYet",
    "TaskRun",
    "Task",
    "RankContext",
    "RunFailure",
    "Verdict",
    "Words",
    "JudgedWorld",
    "check",
    "drill",
    "exercise",
    "exercises_of",
    "grade",
    "lab_of",
    "labs",
    "mock_view",
    "progress_view",
    "chapters_with_tasks",
    "rubric",
    "solution",
    "task_of",
    "tasks_of",
]
