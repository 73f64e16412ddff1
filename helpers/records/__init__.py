"""What is predicted and what is measured, in the same types, so that one function compares them.

Timeline         spans of compute and communication on every rank, and what each holds in memory
CommLog          one event for each operation of torch.distributed
AxisTraffic      what one rank sends over each axis of a mesh
MemoryBreakdown  bytes by kind at a named instant
Magnitudes       how many values lie in each power of two
compare          predicted beside measured beside a guess (comparison.py)

Times are seconds, sizes are bytes. On one Linux machine all ranks share one clock, `time.perf_counter`.
Every record is frozen, takes keywords only, checks itself and survives `to_json` and `from_json`.
"""

from helpers.quantities.units import DerivedBytes
from helpers.records.axes import SCALARS, AxisTraffic, axes_along, traffic_by_axis
from helpers.records.comms import OPS, CommEvent, CommLog
from helpers.records.comparison import Comparison, compare
from helpers.records.magnitudes import Magnitudes
from helpers.records.memory import MEMORY_KINDS, Holding, MemoryBreakdown
from helpers.records.timeline import KINDS, LANES, SOURCES, Span, Timeline, covered_seconds

__all__ = ["CommEvent", "CommLog", "Comparison", "DerivedBytes", "Holding", "Magnitudes", "MemoryBreakdown", "Span"]
__all__ += ["KINDS", "LANES", "MEMORY_KINDS", "OPS", "SOURCES", "Timeline", "compare", "covered_seconds"]
__all__ += ["SCALARS", "AxisTraffic", "axes_along", "traffic_by_axis"]
