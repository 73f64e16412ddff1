"""Pipeline schedules as plain data: what each rank does, in which order. No torch.

One Schedule feeds the runtime that trains, the simulator, the picture, and PyTorch's own runtime through its CSV form.

actions.py   Action and Schedule; `2F0` is stage 2's forward of micro-batch 0; CSV
orders.py    naive, gpipe, one_f_one_b, eager_one_f_one_b, interleaved, zb_h1, zb_h2; several steps in a row
messages.py  who sends what to whom, and what an action waits for
cuts.py      where a chain of layers is cut into stages
validate.py  does it run to its end, and if not, at which action does it hang?
"""

from helpers.schedules.actions import Action, Schedule
from helpers.schedules.cuts import balanced
from helpers.schedules.messages import Message, awaited_by, sent_by
from helpers.schedules.orders import (
    ORDERS,
    eager_one_f_one_b,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    repeated,
    zb_h1,
    zb_h2,
)
from helpers.schedules.validate import validate

__all__ = [
    "ORDERS",
    "Action",
    "Message",
    "Schedule",
    "awaited_by",
    "balanced",
    "eager_one_f_one_b",
    "gpipe",
    "interleaved",
    "naive",
    "one_f_one_b",
    "repeated",
    "sent_by",
    "validate",
    "zb_h1",
    "zb_h2",
]
