"""Lab 10, the clinic: names the tasks that a check judges, and what of torch an answer may not use.

timelines.py  10.split, 10.straggler, and the chapter's exercise 10.exposed: programs that read the times of ranks
clinic.py     10.patients, diagnoses of six buggy jobs, and `clinic(number)`, which shows the six of a number
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="10",
    topic="profiling",
    tasks=("timelines.SPLIT", "timelines.STRAGGLER", "clinic.PATIENTS"),
    in_chapter=("timelines.EXPOSED",),
    forbids=("torch.profiler",),
)
