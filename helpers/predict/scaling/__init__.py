"""Predicts how much faster more GPUs are, where they stop paying, what a training costs, and what a curve lost.

laws.py             speed-up, efficiency, Amdahl and Gustafson, a fit; days and GPU-hours; workers and stragglers;
                    learning rate, gradient noise scale and critical batch
measured_curves.py  a learner's own measurements from a CSV (`read_measurements`), and the parts of a measured curve's
                    loss (`explain_curve`); SOURCES_GPUS and SOURCES_SPEEDUPS are a published curve
A function whose result has a name of its own returns it as a record: AmdahlFit, TrainingTime, Measurements, CurveFit,
NoiseScale. A Point is one count of GPUs of a curve, and `where_it_stops` finds the last efficient one.

Begin with laws.py.
"""

from helpers.predict.scaling.laws import (
    AmdahlFit,
    NoiseScale,
    Point,
    TrainingTime,
    amdahl,
    critical_batch,
    efficiency,
    fit_amdahl,
    gpu_hours,
    gustafson,
    noise_scale,
    scaled_lr,
    serial_share,
    speedup,
    time_to_train,
    where_it_stops,
)
from helpers.predict.scaling.measured_curves import (
    SOURCES_GPUS,
    SOURCES_SPEEDUPS,
    CurveFit,
    Measurements,
    expected_maximum,
    explain_curve,
    read_measurements,
)

__all__ = [
    "SOURCES_GPUS", "SOURCES_SPEEDUPS", "AmdahlFit", "CurveFit", "Measurements", "NoiseScale", "Point",
    "TrainingTime", "amdahl", "critical_batch", "efficiency", "expected_maximum",
    "explain_curve", "fit_amdahl", "gpu_hours", "gustafson", "noise_scale", "read_measurements", "scaled_lr",
    "serial_share", "speedup", "time_to_train", "where_it_stops",
]  # fmt: skip
