"""The grader: `check("03.average", average_gradients)` in a lab's cell.

How a check is written
======================
One file a lab, named as its topic (`ddp.py`; add it to `LABS` in registry.py). It ends with `TASKS = (Task(...), ...)`.
A task has three parts, so that the same check serves the learner's notebook and a class of strangers:

1. `make(rng, world_size) -> [dict, ...]`, beside the judge: the inputs of each rank, plain data (tensors, numbers,
   strings, lists), drawn from `rng`, a torch.Generator. float64, so that any order of additions passes; sizes that
   differ between ranks and that the world size does not divide, where the task is about that.
2. `act(submitted, inputs, trial) -> outputs`, on every rank, beside the learner's code: builds what is needed from this
   rank's inputs, calls `submitted`, returns plain data. It decides nothing. `trial.rank`, `trial.world_size`;
   `trial.mark("…")` notes an instant on the clock of the log. Exceptions pass through; what the ranks send is recorded.
3. `judge(world)`, back in the judging process, yields Findings. `world.size`; `world.inputs`, `world.outputs`,
   `world.logs` (a CommLog a rank, in the order of issuing) and `world.marks`, each in rank order. Compute what ONE
   process gives and compare every rank with the functions of judging.py, which return one Finding each, or yield some:

       for rank, output in enumerate(world.outputs):
           yield expect_tensor("the mean", mean, output["mean"], rank=rank, mistakes={"sum_for_mean": total})
       yield from expect_ops(world, "all_reduce", 1)

   Never trust the outputs: a cheat writes them. Judge what only right work gives.

Hints: a dict of the file, `HINTS = {"sum_for_mean": Hint(en="…", zh="…")}`, key = the mistake. A mistake is recognised
by the value that it would give (`mistakes={key: value}`), by the log (`expect_ops(..., mistakes={key: count})`,
`expect_payload`, `expect(ok, en, zh, mistakes=(key,))`), or by the failure: `recognise(trouble) -> [key, ...]`, for
example `["both_receive_first"] if trouble.kind == "hang" and trouble.waits_in("recv") else []`. Of several, the one
that explains most world sizes is shown; of equals, the one that stands first in HINTS: put the specific ones first.
A sentence about a value has both languages: `Words(en="the gradient of {}", zh="{} 的梯度").format(name)`. What
`expect` says is read behind "on rank 1 of 3 " (or "with 3 ranks ", without a rank). making.py draws numbers and models.

Each hint has a mutant, `tests/mutants/NN_topic/<mistake>.py`: its docstring says who makes this mistake and why, then
`TASK = "03.average"`, `HINT = "sum_for_mean"` and the function with the task's name, with imports of its own.
`tests/right_answers/NN_topic/<style>.py` holds other right ways (`TASK` and the function). tests/grading runs them all.

A task in one process, with simulated devices, has `unit="device"`: world_sizes counts devices, `make(rng, devices)`
returns one dict for all of them, in a list, and the `rank` of a Finding is a device.

`grade(key, function) -> Verdict` is the same without a notebook; `runner=` lets another process act (class grading):
a callable `(inputs, seed) -> Run`. A check runs on ranks of its own: 0.02 to 1 s, 2 s for the first. A
rank that computes for more than `cpu_seconds` is ended; keep torch.optim out of `act`, its first import takes a second.
"""

from helpers.grading.check import NotYet, check, grade
from helpers.grading.overview import drill, mock_view, progress_view
from helpers.grading.registry import labs, task_of, tasks_of
from helpers.grading.task import Finding, Hint, Run, Task, Trial, Trouble, Words, World
from helpers.grading.verdict import Verdict

__all__ = [
    "Finding",
    "Hint",
    "NotYet",
    "Run",
    "Task",
    "Trial",
    "Trouble",
    "Verdict",
    "Words",
    "World",
    "check",
    "drill",
    "grade",
    "labs",
    "mock_view",
    "progress_view",
    "task_of",
    "tasks_of",
]
