"""A step of a few equal blocks, without and with recomputation, on one rank: backward takes twice a forward."""

from __future__ import annotations

from helpers.records import Span, Timeline

SECONDS = {"forward": 1e-3, "backward": 2e-3}


def recomputed_step(num_blocks: int, *, recompute: bool) -> Timeline:
    """Forward of each block, then backward from the last one on; with `recompute` each runs forward again before it.

    ValueError for fewer than 1 block.
    """
    if num_blocks < 1:
        raise ValueError(f"recomputed_step got {num_blocks} blocks; expected 1 or more")
    order = [("forward", f"run {block}") for block in range(num_blocks)]
    for block in reversed(range(num_blocks)):
        order += [("forward", f"again {block}")] * recompute + [("backward", f"backward {block}")]
    spans, now = [], 0.0
    for kind, name in order:
        spans.append(Span(rank=0, lane="compute", name=name, kind=kind, start=now, end=now + SECONDS[kind]))
        now += SECONDS[kind]
    title = "every block recomputed" if recompute else "everything kept"
    return Timeline(spans=tuple(spans), source="predicted", title=title)
