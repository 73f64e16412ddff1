"""Lab 05: where the memory goes. Three tasks count bytes, three keep them down, and those are watched while they run.

counting.py     05.count, 05.states      accumulate.py   05.accumulate      chunked.py   05.chunked
activations.py  05.activations           recompute.py    05.checkpoint      meter.py     bytes that a run holds
"""

from helpers.grading.memory.accumulate import ACCUMULATE
from helpers.grading.memory.activations import ACTIVATIONS
from helpers.grading.memory.chunked import CHUNKED
from helpers.grading.memory.counting import COUNT, STATES
from helpers.grading.memory.recompute import CHECKPOINT

TASKS = (COUNT, STATES, ACTIVATIONS, ACCUMULATE, CHECKPOINT, CHUNKED)  # as the lab asks them
