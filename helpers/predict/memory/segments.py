"""How many checkpoints keep the least: the square-root rule.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4: n layers in k segments keep k
inputs and, while backward is in one segment, its n / k layers: O(k) + O(n / k), least at k = sqrt(n).
A transformer's layer keeps much more inside than goes into it, 34 s b h bytes and its maps against 2 s b h
(`activations_per_layer`), so its best k is larger, near sqrt(n inside / input): one segment a layer up to 33 layers.
"""

from __future__ import annotations

from math import ceil


def segments_peak(num_layers: int, num_segments: int, *, input_bytes: float = 1, inside_bytes: float = 1) -> float:
    """Bytes kept at the worst moment, as backward recomputes the longest segment: k inputs and ceil(n / k) layers.

    input_bytes: what goes into a layer. inside_bytes: what a layer keeps for backward. Both 1 by default: a chain of
    layers that each keep one tensor. Weights, logits and gradients are not in it.
    Raises ValueError for fewer than 1 layer or segment, or more segments than layers.
    """
    if not 1 <= num_segments <= num_layers:
        raise ValueError(
            f"segments_peak(num_layers={num_layers}, num_segments={num_segments}): expected 1 segment up to one a layer"
        )
    return num_segments * input_bytes + ceil(num_layers / num_segments) * inside_bytes


def best_segments(num_layers: int, *, input_bytes: float = 1, inside_bytes: float = 1) -> int:
    """The number of segments whose `segments_peak` is least; the smaller of two that tie. ValueError below 1 layer."""
    if num_layers < 1:
        raise ValueError(f"best_segments(num_layers={num_layers}): expected 1 or more")
    sizes = dict(input_bytes=input_bytes, inside_bytes=inside_bytes)
    return min(range(1, num_layers + 1), key=lambda number: segments_peak(num_layers, number, **sizes))
