"""Lab 08, ZeRO: names the tasks that a check judges, and what of torch an answer may not use.

shards.py   08.shard: tensors as one flat line, and its equal shards
            08.resume: the shards of a checkpoint for another number of ranks
stage1.py   08.stage1, and the chapter's exercise 08.zero1_step: optimizer states in shards
stage2.py   08.stage2, and the chapter's exercise 08.global_norm: gradients in shards
stage3.py   08.stage3, and the chapter's exercise 08.stage3_forward: parameters in shards
cost.py     08.cost: the bytes that a rank holds and sends, stage by stage

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("08")
