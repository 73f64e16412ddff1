"""Provides pipeline schedules as plain data: what each rank does, in which order. Nothing here imports torch.

One Schedule feeds the runtime that trains, the simulator, the picture, and PyTorch's own runtime through its CSV form.

actions.py   Action (`2F0` is stage 2's forward of micro-batch 0), Schedule (what each rank does, in order), Message
             (what one stage sends another); awaited_by, sent_by: the message that an action needs, and the one it sends
orders.py    naive, gpipe, one_f_one_b (1F1B), eager_one_f_one_b, interleaved, zb_h1, zb_h2 (zero bubble): schedules;
             one_f_one_b_with: 1F1B with another warm-up;
             ORDERS: those that a Plan can name; repeated: several steps in a row; balanced: the layers of each stage
validate.py  validate: checks that a schedule is complete, and names the actions at which it would hang

Begin with actions.py.
"""

from helpers.schedules.actions import Action, Message, Schedule, awaited_by, sent_by
from helpers.schedules.orders import (
    ORDERS,
    balanced,
    eager_one_f_one_b,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    one_f_one_b_with,
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
    "one_f_one_b_with",
    "repeated",
    "sent_by",
    "validate",
    "zb_h1",
    "zb_h2",
]
