"""Provides the record types that predictions and measurements share, so that one function compares and draws both.

Timeline         spans of compute and communication on every rank, and what each rank holds in memory (timeline.py)
MemoryBreakdown  bytes by kind at a named instant (timeline.py)
CommLog          one event per operation of torch.distributed (comms.py)
AxisTraffic      what one rank sends over each axis of a mesh (comms.py)
Magnitudes       how many values lie in each power of two (magnitudes.py)
compare          a table of predicted, measured and guessed values (comparison.py)

Times are seconds, sizes are bytes. On one Linux machine all ranks share one clock, `time.perf_counter`.
Every record is frozen, takes keywords only, checks itself and survives `to_json` and `from_json`.
"""

from helpers.quantities.units import DerivedBytes
from helpers.records.comms import OPS, SCALARS, AxisTraffic, CommEvent, CommLog, axes_along, traffic_by_axis
from helpers.records.comparison import Comparison, compare
from helpers.records.magnitudes import Magnitudes
from helpers.records.timeline import (
    KINDS,
    LANES,
    MEMORY_KINDS,
    SOURCES,
    Holding,
    MemoryBreakdown,
    Span,
    Timeline,
    covered_seconds,
)

__all__ = ["CommEvent", "CommLog", "Comparison", "DerivedBytes", "Holding", "Magnitudes", "MemoryBreakdown", "Span"]
__all__ += ["KINDS", "LANES", "MEMORY_KINDS", "OPS", "SOURCES", "Timeline", "compare", "covered_seconds"]
__all__ += ["SCALARS", "AxisTraffic", "axes_along", "traffic_by_axis"]
