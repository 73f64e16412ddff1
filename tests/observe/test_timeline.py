"""A recorded timeline has each part of each phase in order, changes no gradient, and opens in other tools."""

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.commands.traces.perfetto import to_chrome_trace
from helpers.observe.timeline import parts, record_timeline
from helpers.records import Span, Timeline
from helpers.workloads import GPT, MLP, GPTConfig


def small_gpt(dropout=0.0):
    torch.manual_seed(1)
    return GPT(GPTConfig(vocab_size=11, context=8, num_layers=2, num_heads=2, hidden=16, dropout=dropout))


def step(model, optimizer=None):
    tokens = torch.arange(16).view(2, 8) % 11
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    if optimizer is not None:
        optimizer.step()


def record(model, optimizer=None, run=step):
    with record_timeline(model, optimizer) as recorder:
        run(model, optimizer)
    return recorder.timeline


def names(timeline, kind):
    return [span.name for span in timeline.spans if span.kind == kind]


def test_parts_looks_through_lists_and_wrappers():
    assert list(parts(small_gpt()))[3:] == ["blocks.0", "blocks.1", "final_norm", "head"]
    assert list(parts(nn.Linear(2, 2))) == ["Linear"]
    assert list(parts(MLP([3, 4, 2]))) == ["layers.0", "layers.1"]
    assert list(parts(nn.ModuleDict({"module": MLP([3, 4, 2])}))) == ["layers.0", "layers.1"]


def test_a_step_is_forward_loss_backward_optimizer_in_this_order():
    model = small_gpt()
    timeline = record(model, torch.optim.AdamW(model.parameters()))
    assert names(timeline, "forward") == list(parts(model))
    assert names(timeline, "backward") == list(reversed(parts(model)))
    assert (names(timeline, "other"), names(timeline, "optimizer")) == (["loss"], ["AdamW"])
    kinds = list(dict.fromkeys(span.kind for span in timeline.spans))
    assert kinds == ["forward", "other", "backward", "optimizer"]
    assert all(one.end <= two.start for one, two in zip(timeline.spans, timeline.spans[1:], strict=False))
    assert (timeline.source, timeline.ranks) == ("recorded", (0,))


def test_whoever_runs_the_model_may_mark_what_it_does():
    model = small_gpt()
    with record_timeline(model, by_part=False) as recorder:
        recorder.enter("F0", "forward")
        step(model)
        recorder.leave()
    assert [(span.name, span.kind) for span in recorder.timeline.spans] == [("F0", "forward")]


def test_recording_changes_no_gradient():
    plain, recorded = small_gpt(), small_gpt()
    step(plain)
    record(recorded)
    pairs = zip(plain.parameters(), recorded.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)


def test_no_hook_stays_behind():
    model = small_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    timeline = record(model, optimizer)
    before = len(timeline.spans)
    step(model, optimizer)
    assert len(timeline.spans) == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_two_micro_batches_give_two_of_each():
    model = small_gpt()
    timeline = record(model, run=lambda model, _: (step(model), step(model)))
    assert names(timeline, "backward") == 2 * list(reversed(parts(model)))
    assert names(timeline, "other") == ["loss", "loss"]


def test_evaluation_has_forward_only():
    with torch.no_grad():
        timeline = record(small_gpt(), run=lambda model, _: model(torch.zeros(1, 8, dtype=torch.long)))
    assert {span.kind for span in timeline.spans} == {"forward"}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_is_a_forward_inside_the_backward(use_reentrant):
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return checkpoint(self.second, self.first(x), use_reentrant=use_reentrant)

    timeline = record(Recomputed(), run=lambda model, _: model(torch.ones(2, 4)).sum().backward())
    assert names(timeline, "forward") == ["first", "second", "second"]
    assert names(timeline, "backward")[-1] == "first"


def test_communication_and_compute_of_every_rank_lie_on_one_clock(ranks):
    def one_step():
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record_timeline(model, optimizer, title="DDP") as recorder:
            model(torch.ones(4, 64)).sum().backward()
            optimizer.step()
            dist.barrier()
        return recorder.timeline

    merged = Timeline.merge(ranks.run(one_step))
    assert (merged.ranks, merged.title) == ((0, 1, 2, 3), "DDP")
    for rank in merged.ranks:
        mine = merged.for_rank(rank)
        assert names(mine, "backward") == ["2", "1", "0"]
        assert sum(span.num_bytes for span in mine.spans if span.name == "all_reduce") >= 2 * 65 * 64 * 4
        (barrier,) = (span for span in mine.spans if span.name == "barrier")
        (optimizer,) = (span for span in mine.spans if span.kind == "optimizer")
        assert optimizer.end <= barrier.start
    barriers = [span for span in merged.spans if span.name == "barrier"]
    assert max(span.start for span in barriers) <= min(span.end for span in barriers)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: record(nn.ReLU()), "a ReLU without parameters; give the model that trains"),
        (lambda: record(nn.Linear(1, 1), object()), "object has no step hooks"),
    ],
)
def test_bad_input_gets_a_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def span(kind, start, end, rank=0, **more):
    lane = "communication" if kind == "communication" else "compute"
    return Span(rank=rank, lane=lane, name=kind, kind=kind, start=start, end=end, **more)


def test_a_chrome_trace_has_a_process_a_rank_and_microseconds(tmp_path):
    spans = (span("forward", 5, 6), span("communication", 6, 6.5, rank=1, num_bytes=40))
    timeline = Timeline(spans=spans, source="recorded", title="two ranks")
    text = to_chrome_trace(timeline, tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text() == text
    trace = json.loads(text)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["pid"], event["tid"], event["ts"], event["dur"]) for event in complete] == [
        (0, 0, 0.0, 1e6),
        (1, 1, 1e6, 0.5e6),
    ]
    assert complete[1]["args"] == {"bytes": 40}
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert named == {"rank 0", "rank 1", "compute", "communication"}
    assert trace["otherData"] == {"title": "two ranks", "source": "recorded"}


def test_the_lanes_of_a_profile_are_threads_of_their_own():
    waits = Span(rank=0, lane="waiting", name="for rank 1", kind="other", start=6, end=7)
    trace = json.loads(to_chrome_trace(Timeline(spans=(span("forward", 5, 6), waits), source="recorded")))
    threads = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert threads == {0: "compute", 1: "communication", 2: "waiting"}
    assert [event["tid"] for event in trace["traceEvents"] if event["ph"] == "X"] == [0, 2]
