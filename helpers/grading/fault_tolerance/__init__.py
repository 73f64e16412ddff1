"""Lab 12: fault tolerance. One task runs on a simulated disk, five are rules that a job follows when a rank dies.

disk.py       a disk that says after each operation what a crash would leave    saving.py    12.save, on that disk
reading.py    12.resume, 12.reshard: what a rank reads when it goes on
deciding.py   12.verdict, 12.interval, 12.regroup: who is ill, how often to save, who is next
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="12",
    topic="fault_tolerance",
    tasks=tuple(
        "saving.TASK reading.RESUME deciding.VERDICT deciding.INTERVAL reading.RESHARD deciding.REGROUP".split()
    ),
    forbids=("torch.distributed.checkpoint", "torch.distributed.elastic", "torch.utils.data"),
)
