"""Lab 12: fault tolerance. One task runs on a simulated disk, five are rules that a job follows when a rank dies.

saving.py      12.save, on the Disk of disk.py    resuming.py     12.resume     watching.py     12.verdict
interval.py    12.interval                        resharding.py   12.reshard    regrouping.py   12.regroup
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="12",
    topic="fault_tolerance",
    tasks=("saving.TASK", "resuming.TASK", "watching.TASK", "interval.TASK", "resharding.TASK", "regrouping.TASK"),
    forbids=("torch.distributed.checkpoint", "torch.distributed.elastic", "torch.utils.data"),
)
