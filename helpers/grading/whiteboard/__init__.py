"""What drills ask and no lab does: in one process, without a message. Their right answers stand in the drills' yaml.

softmax.py  wb.softmax     merge.py  wb.merge     experts.py  wb.experts     grpo.py  wb.grpo
clock.py    wb.clock
values.py   how a value is judged, NaN too
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="wb",
    topic="whiteboard",
    tasks=(),
    in_chapter=("softmax.SOFTMAX", "merge.MERGE", "experts.EXPERTS", "grpo.GRPO", "clock.CLOCK"),
)
