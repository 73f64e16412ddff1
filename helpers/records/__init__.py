"""Provides the record types that predictions and measurements share, so that one function compares and draws both.

timeline.py
    Timeline         spans (Span) of compute and communication on every rank, and what each rank holds (Holding)
    MemoryBreakdown  bytes by kind at a named instant
    covered_seconds  the seconds in which at least one of several spans runs
    LANES, KINDS, SOURCES, MEMORY_KINDS   the values that these records may have in `lane`, `kind` and `source`
comms.py
    CommLog          one event (CommEvent) per operation of torch.distributed; OPS has the names of the operations
    AxisTraffic      what one rank sends over each axis of a mesh; `traffic_by_axis` makes it of a log, `axes_along`
                     names the axes of a group, and SCALARS is the axis of single numbers such as the loss
magnitudes.py
    Magnitudes       how many values lie in each power of two
comparison.py
    compare          a table (Comparison) of predicted, measured and guessed values

Times are seconds, sizes are bytes. On one Linux machine all ranks share one clock, `time.perf_counter`.
Every record is frozen, takes keywords only, checks itself and survives `to_json` and `from_json`.

Begin with timeline.py.
"""

from helpers import import_on_demand

# Whoever records messages, as each rank does, needs comms.py alone.
__getattr__ = import_on_demand(
    __name__,
    {
        "comms": ("OPS", "SCALARS", "AxisTraffic", "CommEvent", "CommLog", "axes_along", "traffic_by_axis"),
        "comparison": ("Comparison", "compare"),
        "magnitudes": ("Magnitudes",),
        "timeline": (
            "KINDS", "LANES", "MEMORY_KINDS", "SOURCES", "Holding", "MemoryBreakdown", "Span", "Timeline",
            "covered_seconds",
        ),
    },
)  # fmt: skip
