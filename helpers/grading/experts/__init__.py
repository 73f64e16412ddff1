"""Lab 14, experts: names the tasks that a check judges, and what of torch an answer may not use.

router.py    14.route: the experts of each token, and their weights
exchange.py  14.dispatch and 14.combine: rows go to the ranks of their experts and back, forward and backward
balance.py   14.bias: how the bias of the choice moves towards balance
groups.py    14.groups: which ranks add up the gradient of a parameter, and what divides the sum

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("14")
