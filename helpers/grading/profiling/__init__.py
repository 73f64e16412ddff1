"""Lab 10, profiling: names the tasks that a check judges, and what of torch an answer may not use.

timelines.py  10.split and the chapter's exercise 10.exposed: programs that read the times of ranks
straggler.py  10.straggler: which rank the others wait for, and why
clinic.py     10.patients, diagnoses of six buggy jobs, and `clinic(number)`, which shows the six of a number

LAB is the record by which the grader finds the lab. "timelines.SPLIT" is the Task called SPLIT in timelines.py, which
is imported only when it is asked for. `tasks` are in order from easy to hard. `in_chapter` are tasks that only the
chapter asks. An answer may not use what `forbids` lists, because it would do the learner's work.

Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("10")
