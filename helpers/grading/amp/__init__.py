"""Lab 04: mixed precision.

scaling.py    04.scale      masters.py   04.master      scaler.py    04.scaler
order.py      04.order      together.py  04.overflow    stories.py   steps compared with right and known wrong ones
"""

from helpers.grading.amp.masters import MASTER
from helpers.grading.amp.order import ORDER
from helpers.grading.amp.scaler import SCALER
from helpers.grading.amp.scaling import SCALE
from helpers.grading.amp.together import OVERFLOW

TASKS = (SCALE, MASTER, SCALER, ORDER, OVERFLOW)  # as the lab asks them
