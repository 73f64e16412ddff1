"""More GPUs: how much faster, where it stops paying, what it costs, and what a measured curve lost.

laws.py      speed-up, efficiency, Amdahl and Gustafson, a fit
curves.py    steps predicted on more and more GPUs; days and GPU-hours of a training
explain.py   the sources' curve of ResNet-152, as parts with what is left open
readings.py  a learner's own measurements from a CSV
batch.py     learning rate, gradient noise scale and critical batch
"""

from helpers.predict.scaling.batch import BatchCost, NoiseScale, batch_cost, critical_batch, noise_scale, scaled_lr
from helpers.predict.scaling.curves import Point, TrainingTime, curve, gpu_hours, time_to_train, where_it_stops
from helpers.predict.scaling.explain import SOURCES_GPUS, SOURCES_SPEEDUPS, CurveFit, expected_maximum, explain_curve
from helpers.predict.scaling.laws import AmdahlFit, amdahl, efficiency, fit_amdahl, gustafson, serial_share, speedup
from helpers.predict.scaling.readings import Measurements, read_measurements

__all__ = [
    "SOURCES_GPUS", "SOURCES_SPEEDUPS", "AmdahlFit", "BatchCost", "CurveFit", "Measurements", "NoiseScale", "Point",
    "TrainingTime", "amdahl", "batch_cost", "critical_batch", "curve", "efficiency", "expected_maximum",
    "explain_curve", "fit_amdahl", "gpu_hours", "gustafson", "noise_scale", "read_measurements", "scaled_lr",
    "serial_share", "speedup", "time_to_train", "where_it_stops",
]  # fmt: skip
