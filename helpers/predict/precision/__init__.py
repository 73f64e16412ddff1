"""What a number format (formats.py) keeps of values (values.py): normal, subnormal, rounded to zero, too large."""

from helpers.predict.precision.values import (
    RECORDED,
    SCALES,
    Survival,
    best_scale,
    recorded,
    recorded_magnitudes,
    surviving,
)

__all__ = ["RECORDED", "SCALES", "Survival", "best_scale", "recorded", "recorded_magnitudes", "surviving"]
