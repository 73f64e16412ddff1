"""Lab 07, tensor parallelism: names the tasks that a check judges, and what of torch an answer may not use.

operators.py         07.identity_all_reduce and 07.all_reduce_identity, Megatron's operators f and g
linear_layers.py     07.column and 07.row, linear layers of which each rank holds a shard of the weight
vocab_loss.py        07.cross_entropy, a loss of which each rank holds the logits of a vocabulary shard
forward_only.py      07.heads, and the chapter's exercises 07.mlp, 07.token_loss and 07.norm
forward_backward.py  used by the first three: runs both passes on a rank, and judges the messages of each pass

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("07")
