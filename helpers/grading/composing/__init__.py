"""Lab 09, composing strategies on a mesh: names the tasks that a check judges, and what of torch an answer may not use.

placement.py           09.places, 09.batch and 09.seeds: one process answers for every rank of many meshes
loss_and_gradients.py  09.loss, 09.sync and 09.norm: live ranks communicate over the process groups of a mesh
meshes.py              used by all: the meshes of a number of ranks, and their process groups

LAB is the record by which the grader finds the lab. "placement.PLACES" is the Task called PLACES in placement.py, which
is imported only when it is asked for. `tasks` are in order from easy to hard. An answer may not use what `forbids`
lists, because it would do the learner's work.

Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("09")
