"""The inventory against torch, tensor by tensor and to the byte: what autograd saves, what the memory meter sees."""

from collections import Counter
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from helpers.observe.memory import record_memory
from helpers.predict.memory.activations import activations
from helpers.predict.memory.inventory import CALLER, inventory
from helpers.specs import PRESETS, ModelSpec, Plan
from helpers.workloads.gpt import GPT, GPTConfig, token_loss

DTYPES = {torch.float32: "fp32", torch.bfloat16: "mixed"}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.values())


class Case:
    """A GPT, a batch, and what is predicted for them."""

    def __init__(self, dtype=torch.float32, batch=2, **config):
        self.config = GPTConfig.tiny(**config)
        c = self.config
        spec = ModelSpec(num_layers=c.num_layers, hidden=c.hidden, num_heads=c.num_heads, vocab=c.vocab_size,
                         seq=c.context, tied_embeddings=c.tied)  # fmt: skip
        self.predicted = inventory(spec, Plan(precision=DTYPES[dtype]), batch=batch)
        self.model = GPT(c).to(dtype)
        self.tokens, self.targets = (torch.randint(0, c.vocab_size, (batch, c.context)) for _ in range(2))

    def loss(self):
        return token_loss(self.model(self.tokens), self.targets)


def saved_by_torch(case):
    """Counter of (dtype, bytes of storage): each storage that autograd holds after forward, without parameters."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        loss = case.loss()
    parameters = {p.untyped_storage().data_ptr() for p in case.model.parameters()}
    storages = {t.untyped_storage().data_ptr(): t for t in saved}
    assert loss.requires_grad
    found = [t for where, t in storages.items() if where not in parameters]
    return Counter((str(t.dtype).removeprefix("torch."), t.untyped_storage().nbytes()) for t in found if t.numel())


@every_dtype
def test_each_tensor_that_autograd_saves(dtype):
    case = Case(dtype)
    assert Counter((row.dtype, row.num_bytes) for row in case.predicted.rows) == saved_by_torch(case)


def measured(case):
    """Activations after forward by module, and the most of activations and temporaries, by the memory meter."""
    with record_memory(case.model) as recorder:
        loss = case.loss()
        recorder.mark("after forward")
        loss.backward()
    kept = recorder.by_module("activations", "after forward")
    changes = []
    for held in recorder.timeline(rank=0).held:
        if held.kind in ("activations", "temporaries"):
            changes += [(held.start, held.num_bytes), (held.end, -held.num_bytes)]
    changes.sort(key=lambda change: change[0])  # by time; what is freed and what is made never share an instant
    return kept, max(accumulate(change for _, change in changes))


def assert_equal_to_the_byte(case):
    """The meter does not see the targets, which enter no module; it sees the loss itself, which `total` leaves out."""
    kept, peak = measured(case)
    expected = case.predicted.by_module(made=True)
    assert expected.pop(CALLER) == case.tokens.nbytes + case.targets.nbytes
    expected["GPT"] = expected.get("GPT", 0) + case.tokens.nbytes
    expected["the loss"] += next(case.model.parameters()).element_size()
    assert kept == expected
    assert peak == case.predicted.peak - case.targets.nbytes


@every_dtype
def test_the_peak_of_a_step_to_the_byte(dtype):
    assert_equal_to_the_byte(Case(dtype))


SHAPES = [
    dict(batch=1),
    dict(batch=3, num_heads=1),
    dict(batch=3, num_layers=3, hidden=24, num_heads=3, context=20, vocab_size=7, tied=False),
    dict(batch=2, num_layers=1, vocab_size=500),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_for_other_shapes(shape):
    assert_equal_to_the_byte(Case(**shape))


def peak_by_allocator(case):
    """The most that torch's CPU allocator had handed out: no dispatch mode, and the inside of kernels is seen, too."""
    case.loss()  # whatever is made once is made now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        case.loss().backward()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def test_another_observer_finds_the_same_peak():
    """At the loss, where no parameter has a gradient yet. The caller's ids and targets were there before."""
    case = Case(vocab_size=1000)
    assert case.predicted.where == "backward of the loss"
    given = case.tokens.nbytes + case.targets.nbytes
    assert peak_by_allocator(case) - case.predicted.peak + given in range(0, 64)


def tiny(**plan):
    model = ModelSpec(num_layers=2, hidden=32, num_heads=4, vocab=68, seq=32)
    return inventory(model, Plan(**{"precision": "fp32"} | plan), batch=2)


def test_a_tensor_that_several_modules_keep_is_listed_once():
    (row,) = (row for row in tiny().rows if row.name == "normed input 0")
    assert row.module == "blocks.0.attention.query"
    assert row.shared_with == ("blocks.0.attention.key", "blocks.0.attention.value")
    assert row.num_bytes == 4 * 2 * 32 * 32


def test_sums_by_module_add_up():
    found = tiny()
    assert sum(found.by_module().values()) == found.total == sum(found.by_module(depth=1, made=True).values())
    assert found.by_module(depth=2)["blocks.0"] == found.by_module(depth=2)["blocks.1"]


def test_with_a_large_vocabulary_the_peak_is_at_the_loss():
    """GPT-2: three tensors of the logits' size, 4 bytes a number each."""
    gpt2 = inventory(PRESETS["gpt2"], Plan(precision="fp32"), batch=1)
    logits = 4 * 1024 * 50_257
    assert gpt2.where == "backward of the loss"
    assert gpt2.peak == pytest.approx(gpt2.total + 2 * logits, rel=1e-6)
    largest = max(gpt2.rows, key=lambda row: row.num_bytes)
    assert largest.name == "log-softmax" and largest.num_bytes == logits


def test_the_papers_count_other_things():
    """GPT-3, 16 bits, without dropout here: torch keeps 34 - 2 bytes of masks, and a little for statistics."""
    model, plan = ModelSpec(num_layers=1, hidden=12_288, num_heads=96, vocab=50_257, seq=2048), Plan()
    ours = inventory(model, plan).by_module(depth=2)["blocks.0"]
    assert activations(model, plan) / (2048 * 12_288) == 34
    assert 32 < ours / (2048 * 12_288) < 32.1


def test_it_takes_the_micro_batch_of_the_plan():
    assert tiny(micro_batch=7) == tiny()
    model = ModelSpec(num_layers=1, hidden=8, num_heads=1, vocab=5, seq=4)
    assert inventory(model, Plan(micro_batch=3)) == inventory(model, Plan(), batch=3)


@pytest.mark.parametrize(
    ("model", "plan", "more", "words"),
    [
        (PRESETS["llama3-8b"], Plan(), {}, "course's GPT, which has num_kv_heads=32, but this model has 8"),
        (PRESETS["gpt2"], Plan(pp=2), {}, "all layers and tokens, but the plan has pp=2"),
        (PRESETS["gpt2"], Plan(tp=5), {}, "tp=5 does not divide num_heads=12"),
        (PRESETS["gpt2"], Plan(recompute="full"), {}, "does not know recompute='full': set it to 'none'"),
        (
            PRESETS["gpt2"],
            Plan(attention="materialized"),
            {},
            "does not know attention='materialized': set it to 'flash'",
        ),
        (PRESETS["gpt2"], Plan(), {"batch": 0}, "batch is 0, but it must be a whole number"),
    ],
)
def test_bad_input_gets_a_sentence(model, plan, more, words):
    with pytest.raises(ValueError, match=words):
        inventory(model, plan, **more)
