"""The grader: judges a learner's answer to a task, for `check("03.average", average_gradients)` in a lab's cell.

What it exports, each defined in the module from which it is imported below:
check, exercise            judge an answer in a cell of a lab, and in a cell of a chapter; NotYet is what `check` raises
grade                      judges an answer without a notebook and returns a Verdict, the outcome with its text
drill, mock_view           a whiteboard drill and a mock interview that use the checks
start_ranks                begins to start the ranks of the checks, in the background
progress_view              a table of the tasks that the learner has passed
solution, rubric           the lab's own answer to a task, and how an answer in words earns points
labs, lab_of               the numbers of the labs, and the record of one; chapters_with_tasks for all chapters
Task, task_of, tasks_of    the record of a task, and how to find tasks by key or number; exercises_of for a chapter's
Words                      a text in English and Chinese

How to write a check
====================
Each lab has one folder, named as its topic, and an entry in labs.yaml with its tasks and with what of torch the lab
forbids. The Task AVERAGE of lab 03 has the key "03.average". What several labs use stands in kit/, and the folders of
labs do not import each other.

A task has three parts, so that the same check serves a learner's own notebook and the grading of a whole class:

1. `make_inputs(rng, world_size) -> [dict, ...]` runs beside the judge. It draws the inputs of each rank from `rng`, a
   CaseGenerator: plain data (tensors, numbers, strings, lists). Use float64, so that additions in any order pass, and
   sizes that differ between ranks and that the world size does not divide, where the task is about that.
2. `run_submission(submitted, inputs, context) -> outputs` runs on every rank, beside the learner's code. It builds
   what is needed from this rank's inputs, calls `submitted`, and returns plain data. It decides nothing. `context`
   has `rank`, `world_size`, and `mark("…")`, which notes an instant on the clock of the communication log. Exceptions
   pass through. What the ranks send is recorded.
3. `judge(world)` runs in the judging process, where no learner's code does, and yields Judgements. `world` is a
   JudgedWorld, with `size`, `inputs`, `outputs`, `logs` (one CommLog per rank) and `marks`, each in rank order.
   Compute what ONE process gives and compare every rank with it by the functions of kit/comparisons.py, and of
   kit/tensor_comparisons.py:

       for rank, output in enumerate(world.outputs):
           yield expect_tensor("the mean", mean, output["mean"], rank=rank, mistakes={"sum_for_mean": total})
       yield from expect_num_calls(world, "all_reduce", 1)

   A world is a number of ranks that run the answer together. Never trust the outputs, because a cheat can write them:
   compare them with values that only right work gives.

A task for one process with simulated devices has `runs_on="devices"`: a world size counts devices, `make_inputs`
returns one dict for all of them, in a list, and the `rank` of a Judgement is a device. One for a single process has
`runs_on="process"`. If neither its inputs nor its answers are tensors, it also has `needs_torch=False`, its `rng` is a
NumberGenerator, and no file that it imports may import torch: then a page of the web edition judges it as well.

Hints and mistakes
==================
A mistake is a wrong solution that learners often write. Each stands once, in the lab's mistakes.yaml, as an edit of the
lab's own answer; mistakes.py says how. Where a check failed, the mistakes run on the same inputs, and the one that
leaves what the learner's answer left is named. Its hint is in hints.yaml, by the mistake's key. A judge therefore only
says what is right or wrong. It names mistakes itself (`mistakes={key: value}`, `mistakes=(key,)`) only where no single
edit can stand for all who make the mistake, for example where they compute different things and send too much alike.
A mistake that shows as a failure is recognised by the failure: `recognise_failure(failure) -> [key, ...]`, for example
`["both_receive_first"] if failure.kind == "hang" and failure.is_waiting_in("recv") else []`. Only a mistake that
explains every failing case of every failing world gets its hint; of several, the one whose hint stands first, so put
specific ones first. A task that stands alone, as a teacher's own, has `hints={"sum_for_mean": Words(en="…", zh="…")}`.

The name of a value, or a sentence, has both languages: `Words(en="the gradient of {}", zh="{} 的梯度").format(name)`.
Our labs keep theirs in messages.yaml, and after `words = LAB.messages` this is `words["gradient"].format(name)`. The
sentence of `expect` is read behind "on rank 1 of 3 ", or behind "with 3 ranks " if it has no rank.

tests/right_answers/NN_topic.yaml holds right answers in other styles (task, name, says, text). tests/grading runs them
and all mistakes: each must get its own hint and no other's, and each hint has a mistake.

Who calls it
============
A chapter's cell calls `exercise("03.average", average_gradients)`: the same judge, but nothing raises. A task that
only a chapter asks stands in the same folder and in `in_chapter` of the LAB. Its right answer stands in a collapsed
cell of the chapter. `grade(key, function)` gives the Verdict without a notebook. With `runner=`, another process runs
the answer, as in the grading of a whole class: a callable `(inputs, seed) -> TaskRun`. Otherwise a check runs on ranks
of its own, in 0.02 to 1 s, or 2 s for the first. A rank that computes for more than `cpu_seconds` is ended, as is a
check of more than `seconds`, and safeguards/ protects the learner's machine. Keep torch.optim out of `run_submission`,
because its first import takes a second.

Begin with task.py, the records of a task, and then read judging.py.
"""

from helpers import import_on_demand
from helpers.grading.check import NotYet, check, drill, exercise, mock_view, progress_view
from helpers.grading.judging import grade
from helpers.grading.registry import chapters_with_tasks, exercises_of, lab_of, labs, task_of, tasks_of
from helpers.grading.task import Task
from helpers.grading.verdict import Verdict
from helpers.grading.waiting import start_ranks
from helpers.learner.words import Words

# No check reads the notebooks of the labs, unless it offers the lab's own answer.
__getattr__ = import_on_demand(__name__, {"lab_notebooks": ("rubric", "solution")})

__all__ = [
    "NotYet", "Task", "Verdict", "Words", "chapters_with_tasks", "check", "drill", "exercise", "exercises_of",
    "grade", "lab_of", "labs", "mock_view", "progress_view", "rubric", "solution", "start_ranks", "task_of",
    "tasks_of",
]  # fmt: skip
