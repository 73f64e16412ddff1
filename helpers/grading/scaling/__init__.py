"""Lab 11, scaling: names the tasks that a check judges.

All are small computations with which a training run on many GPUs is planned, or understood afterwards.

measurements.py  11.efficiency and 11.fit: what times on several numbers of GPUs say
planning.py      11.exposed and 11.bubble, what a step loses; 11.plans and 11.days, the fastest plan and its time
step_terms.py    11.step, which only the chapter asks: the terms of a step of a Llama

LAB is the lab's entry in labs.yaml: its tasks in their order.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("11")
