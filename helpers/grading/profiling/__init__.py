"""Lab 10: the clinic. Two programs that read what ranks wrote down, and six ill jobs that the learner's number draws.

spans.py      10.split, 10.exposed    straggler.py   10.straggler    patients.py   10.patients
clinic.py     the six of a number, as a learner sees them; the causes to choose from (causes.yaml)
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="10",
    topic="profiling",
    tasks=("spans.SPLIT", "straggler.TASK", "patients.TASK"),
    in_chapter=("spans.EXPOSED",),
    forbids=("torch.profiler",),
)
