"""A run told as its prediction is told: the same names, lanes and memory, so that their pictures can be compared.

A recording knows less than a prediction, and other words for it: parts are named by their place in the model, a message
begins when it is handed over and not when the link is free, and of memory there is nothing. Times stay as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from helpers.records import Holding, Span, Timeline


def told_like(run: Timeline, predicted: Timeline) -> Timeline:
    """`run`, one DDP step, in the grammar of `predicted`: what `simulate_ddp_step` returned for it.

    Forward is one bar, backward parts have the prediction's names, a message begins when the one before has arrived,
    and gradients are held from the moment they are ready. ValueError where a rank has more or fewer backward parts than
    were predicted, since nobody could say which is which.
    """
    zeroed, first = run.shifted_to_zero(), predicted.for_rank(predicted.ranks[0])
    spans, held = [], []
    for rank in zeroed.ranks:
        told = list(_spans(zeroed.for_rank(rank).spans, first.spans))
        spans += told
        held += _held(rank, told, first.held, zeroed.duration)
    return replace(zeroed, spans=tuple(spans), held=tuple(held))


def _of(spans: Sequence[Span], kind: str) -> list[Span]:
    return sorted((span for span in spans if span.kind == kind), key=lambda span: span.start)


def _spans(ran: Sequence[Span], predicted: Sequence[Span]) -> Iterator[Span]:
    """A rank's spans: one forward, each backward with its name, messages one after the other; the rest as it is."""
    forward, backward, messages = (_of(ran, kind) for kind in ("forward", "backward", "communication"))
    names = [span.name for span in _of(predicted, "backward")]
    if len(names) != len(backward):
        raise ValueError(
            f"the run has {len(backward)} backward spans on a rank and the prediction {len(names)}; "
            "give the prediction of this very step"
        )
    if forward:
        yield replace(forward[0], name="forward", end=forward[-1].end)
    yield from (replace(span, name=name) for span, name in zip(backward, names, strict=True))
    yield from _on_the_link(messages)
    yield from (span for span in ran if span.kind not in ("forward", "backward", "communication"))


def _on_the_link(messages: Sequence[Span]) -> Iterator[Span]:
    """Recorded from when a bucket was handed over; a message starts when the one before has arrived."""
    free = 0.0
    for number, span in enumerate(messages):
        yield replace(span, name=f"all_reduce {number}", start=min(max(span.start, free), span.end))
        free = span.end


def _held(rank: int, told: Sequence[Span], predicted: Sequence[Holding], end: float) -> Iterator[Holding]:
    """Parameters all along, each gradient from the end of its backward on: the predicted bytes, the run's instants."""
    ready = {span.name: span.end for span in told if span.kind == "backward"}
    for one in predicted:
        yield replace(one, rank=rank, start=ready.get(one.name, 0.0), end=end)
