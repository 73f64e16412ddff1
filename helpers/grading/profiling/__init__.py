"""Lab 10, profiling: names the tasks that a check judges, and what of torch an answer may not use.

timelines.py  10.split and the chapter's exercise 10.exposed: programs that read the times of ranks
straggler.py  10.straggler: which rank the others wait for, and why
clinic.py     10.patients, diagnoses of six buggy jobs, and `clinic(number)`, which shows the six of a number

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("10")
