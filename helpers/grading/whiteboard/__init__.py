"""Whiteboard tasks, which drills ask and no lab does; their right answers stand in the drills' YAML.

A drill asks for a short function, as an interviewer does at a whiteboard. These tasks run in one process and send no
messages. Each file draws inputs, runs the answer, and compares it with a short reference. mistakes.yaml has the
mistakes that learners often make.

attention.py   wb.softmax, wb.merge   attention over blocks of keys
experts.py     wb.experts             a mixture of experts
grpo.py        wb.grpo                the loss of GRPO
clocks.py      wb.clock               two ranks' clocks on one time axis

LAB is the lab's entry in labs.yaml: its tasks in their order.
Begin with clocks.py.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("wb")
