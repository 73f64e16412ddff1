"""Lab 09, composing strategies on a mesh: names the tasks that a check judges, and what of torch an answer may not use.

placement.py           09.places and 09.seeds: one process answers for every rank of many meshes
batch.py               09.batch: the same, with batches that are tensors
loss_and_gradients.py  09.loss, 09.sync and 09.norm: live ranks communicate over the process groups of a mesh
meshes.py              used by all: the meshes of a number of ranks

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("09")
