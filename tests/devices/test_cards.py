"""A practice card refuses what CUDA refuses, in its words and with the learner's line, and counts what it holds."""

import copy
import gc
import io
import subprocess
import sys
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import graph
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from helpers.observe.memory import record_memory
from helpers.parallel.amp import autocast
from helpers.parallel.shared import recompute
from helpers.ranks import RankError, Ranks
from helpers.workloads import GPT, GPTConfig, token_loss

MB = 1_000_000


def on_card(*shape, **options):
    return torch.ones(*shape, device="card", **options)


# -- mistakes: cells, of which the last line is the wrong one ----------------------------------------------------------
MISTAKES = {
    "torch.nn.Linear(4, 2).to(device)(torch.ones(3, 4))": "got mat1 is on cpu, different from other tensors on card:0",
    "torch.ones(3, device=device) + torch.ones(3)": "same device, but found at least two devices, card:0 and cpu!",
    "torch.nn.functional.cross_entropy(torch.ones(2, 3).to(device), torch.tensor([0, 1]))": "got target is on cpu",
    "torch.nn.Embedding(4, 4, device=device)(torch.tensor([1]))": "got indices is on cpu",
    "torch.cat([torch.ones(2, device=device), torch.ones(2)])": "got tensors is on cpu",
    "torch.ones(3, device=device).numpy()": "TypeError: can't convert card:0 device type tensor to numpy. Use",
    "import numpy\nnumpy.asarray(torch.ones(3, device=device))": "can't convert card:0 device type tensor to numpy",
    "torch.ones(4)[torch.tensor([1], device=device)]": "indices should be either on cpu or on the same device",
    "torch.randn(3, device=device, generator=torch.Generator())": "Expected a 'card' device type for generator",
    "torch.randperm(3, generator=torch.Generator('card'))": "a 'cpu' device type for generator but found 'card'",
    "torch.ones(3).normal_(generator=torch.Generator(device))": "Expected a 'cpu' device type for generator",
    "torch.utils.data.random_split(range(3), [1, 2], torch.Generator(device))": "Expected a 'cpu' device type",
    "x = torch.ones(1, 1, device=device)\n"
    "torch.nn.utils.rnn.pack_padded_sequence(x, x[0].long())": "should be a 1D CPU int64 tensor, but got 1D card:0",
    "torch.ones(3, device='card:1')": "invalid device ordinal: card:1 was asked for, and a rank has one card",
    "torch.ones(3, device=device).pin_memory()": "only dense CPU tensors can be pinned",
    "torch.card.Event().elapsed_time(torch.card.Event())": "enable_timing=True",
    "torch.empty(10**9, device=device)": "OutOfMemoryError: card out of memory. Tried to allocate 3.73 GiB.",
    "p = torch.ones(3, device=device)\nwith torch.autocast('card', torch.float16):\n"
    "    torch.nn.functional.binary_cross_entropy(p, p)": "are unsafe to autocast",
    "x = torch.ones(2, device=device, requires_grad=True)\n(x * x).backward(torch.ones(2))": "at least two devices",
    "x = torch.ones(1_000_000, device=device, requires_grad=True)\ny = x.sin().sum()\n"
    "torch.card.memory.capacity = torch.card.memory_allocated() + 1_000_000\n"
    "y.backward()": "OutOfMemoryError: card out of memory. Tried to allocate 3.81 MiB",
}


@pytest.mark.parametrize("cell", MISTAKES)
def test_a_mistake_is_told_in_cudas_words_with_the_learners_line(cards, cell):
    held = cards.run(reset)  # starts ranks that were given back while nobody used them
    pids = cards.pids
    with pytest.raises(RankError) as error:
        cards.cell(cell)
    assert MISTAKES[cell] in str(error.value) and f"`{cell.splitlines()[-1].strip()}`" in str(error.value)
    assert cards.pids == pids  # nobody died of it
    cards.cell("x = y = p = None")
    assert all(now <= before for now, before in zip(cards.run(reset), held, strict=True))


def reset():
    gc.collect()  # models of other tests may have been cycles
    torch.card.memory.capacity = 200 * MB
    return torch.card.memory_allocated()


def test_what_a_gpu_lets_pass_passes(cards):
    def allowed():
        x = on_card(4)
        x[torch.tensor([1])] = 3.0  # an index on the CPU
        x += torch.tensor(1.0)  # a number
        host = torch.empty(4, pin_memory=True)
        host.copy_(x, non_blocking=True)
        stream, start, end = torch.card.Stream(), *(torch.card.Event(enable_timing=True) for _ in range(2))
        with torch.card.stream(stream):
            start.record()
            torch.card.current_stream().wait_stream(stream)
            end.record()
        torch.card.synchronize()
        shown = [repr(x), f"{x.sum():.1f}", x.numpy(force=True).tolist(), x.tolist()]
        return host, host.is_pinned(), start.elapsed_time(end) >= 0, shown

    values = [2.0, 4.0, 2.0, 2.0]
    host, pinned, timed, shown = cards.run(allowed)[0]
    assert host.tolist() == values and pinned and timed
    assert shown == ["tensor([2., 4., 2., 2.], device='card:0')", "10.0", values, values]


# -- errors where torch would end the process --------------------------------------------------------------------------
class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return fail()


class Through(Failing):
    @staticmethod
    def backward(ctx, gradient):
        return gradient


def fail(*_):
    raise KeyError("mine")


def failing_again():
    """A piece of a model that runs once."""
    seen = []
    return lambda x: x * x if seen.append(x) or len(seen) == 1 else fail()


def backward_with(way):
    x, layer = on_card(2, 2, requires_grad=True), nn.Linear(2, 2, device="card")
    if way == "hook":
        y = x * x
        y.register_hook(fail)
    elif way == "hook of a leaf":
        x.register_post_accumulate_grad_hook(fail)
        y = x * x
    elif way == "hook of a module":
        layer.register_full_backward_hook(fail)
        y = layer(x)
    elif way in ("hook of a node", "hook before a node"):
        y = x * x
        (y.grad_fn.register_hook if "of" in way else y.grad_fn.register_prehook)(fail)
    elif way == "hook of a function's node":
        y = Through.apply(x)
        y.grad_fn.register_hook(fail)
    elif way == "saved tensor":
        with graph.saved_tensors_hooks(lambda tensor: tensor, fail):
            y = x * x
    elif way == "function":
        y = Failing.apply(x)
    elif way == "torch's checkpoint":
        y = checkpoint(failing_again(), x, use_reentrant=False)
    else:
        y = recompute.checkpoint(failing_again(), x)
    y.sum().backward()


WAYS = "hook|hook of a leaf|hook of a module|saved tensor|function|torch's checkpoint|our checkpoint".split("|")
WAYS += ["hook of a node", "hook before a node", "hook of a function's node"]


@pytest.mark.parametrize("way", WAYS)
def test_an_error_inside_backward_comes_when_it_ends(cards, way):
    pids = cards.pids
    with pytest.raises(RankError, match="KeyError: 'mine'\n  at test_cards.py line"):
        cards.run(backward_with, way)
    assert cards.pids == pids


def test_an_error_of_an_operation_in_backward_comes_when_it_ends(cards):
    def out_of_range():
        x, index = on_card(3, requires_grad=True), torch.zeros(2, dtype=torch.long, device="card")
        y = x.gather(0, index)
        index.data._raw.fill_(99)  # behind autograd's back
        y.sum().backward()

    pids = cards.pids
    with pytest.raises(RankError, match="index 99 is out of bounds"):
        cards.run(out_of_range)
    assert cards.pids == pids


# -- memory ------------------------------------------------------------------------------------------------------------
def test_memory_is_counted_by_storage(cards):
    def count():
        before, now = reset(), torch.card.memory_allocated
        torch.card.reset_peak_memory_stats()
        x = on_card(MB)
        said, views = [now()], (x.view(1000, 1000)[::2], x.detach())
        y = x + 1
        del y
        said += [now(), torch.card.max_memory_allocated()]
        host = torch.empty(MB).copy_(x)  # memory of the host
        x.untyped_storage().resize_(0)
        said.append(now())
        del x, views, host
        said += [now(), torch.card.mem_get_info()[1] - torch.card.mem_get_info()[0]]
        return [one - before for one in said]

    assert cards.run(count) == [[4 * MB, 4 * MB, 8 * MB, 0, 0, 0]] * 2


def full_in_a_step():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).to("card")
    tokens = torch.zeros(4, 32, dtype=torch.long, device="card")
    torch.card.memory.capacity = 300_000
    with record_memory(model):
        token_loss(model(tokens), tokens).backward()


def test_the_error_says_what_holds_the_memory_where_the_meter_runs(cards):
    with pytest.raises(RankError, match="is allocated by PyTorch: parameters 112 KiB, .*activations and temporaries"):
        cards.run(full_in_a_step)
    cards.run(reset)


def full_in_backward():
    """The most is held there, so a card that is one byte too small is full there, with autograd's engine below."""
    torch.card.reset_peak_memory_stats()
    peak, _ = measured("card")
    assert peak.instant.startswith("backward")
    torch.card.memory.capacity = torch.card.max_memory_allocated() - 1
    measured("card")


def test_a_card_that_is_full_in_a_backward_under_the_meter_says_so(cards):
    with pytest.raises(RankError, match="OutOfMemoryError: card out of memory"):
        cards.run(full_in_backward)
    cards.run(reset)


def measured(device):
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.zeros(4, 32, dtype=torch.long, device=device)
    with record_memory(model, optimizer) as recorder:
        token_loss(model(tokens), tokens).backward()
        recorder.mark("after backward")
        optimizer.step()
    return recorder.peak, recorder.at("after backward")


def test_the_meter_sees_on_a_card_what_it_sees_on_the_cpu(ranks, cards):
    assert cards.run(measured, "card") == ranks[:2].run(measured, "cpu")


# -- random numbers ----------------------------------------------------------------------------------------------------
def test_a_card_has_a_generator_of_its_own(cards):
    def draw():
        torch.manual_seed(5)
        plain = torch.rand(4)
        torch.manual_seed(5)
        own = torch.rand(4, device="card")
        state = torch.card.get_rng_state()
        first, after = torch.rand(2, device="card"), torch.rand(4)  # the CPU's has not moved
        torch.card.set_rng_state(state)
        again = torch.rand(2, device="card")
        made = torch.rand(4, device="card", generator=torch.Generator("card").manual_seed(5))
        return plain, own, after, made, first, again

    plain, *same, first, again = cards.run(draw)[0]
    assert all(torch.equal(plain, other) for other in same) and torch.equal(first, again)


@pytest.mark.parametrize("whose", [recompute.checkpoint, checkpoint], ids=["ours", "torch's"])
def test_dropout_drops_the_same_places_when_it_is_recomputed(cards, whose):
    def drop():
        x = on_card(1000, requires_grad=True)
        options = {} if whose is recompute.checkpoint else {"use_reentrant": False}
        out = whose(F.dropout, x, **options)
        torch.rand(3, device="card")
        out.sum().backward()
        return torch.equal(x.grad, out.detach()), (out == 0).sum().item()

    same, dropped = cards.run(drop)[0]
    assert same and 400 < dropped < 600


# -- the rest of a device ----------------------------------------------------------------------------------------------
def test_autocast_follows_cudas_table(cards):
    def types():
        a, h = on_card(4, 4), on_card(4, 4, dtype=torch.bfloat16)
        with torch.autocast("card", torch.bfloat16):
            made = [a @ a, F.softmax(h, 0), h.exp(), F.layer_norm(h, (4,)), torch.addcmul(h, a, h), h.sum(), h + h]
            made.append(h.sum(dtype=torch.bfloat16))
        return [str(one.dtype).removeprefix("torch.") for one in made]

    assert cards.run(types)[0] == ["bfloat16", *["float32"] * 5, "bfloat16", "bfloat16"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_run_which_torch_fuses_on_every_gpu(cards, kind):
    def run(device):
        torch.manual_seed(0)
        model, x = kind(3, 4).double().to(device), torch.ones(5, 2, 3, dtype=torch.float64, device=device)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))  # lengths stay on the CPU
        rest = nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0]
        ((out := model(x)[0]).sum() + rest.square().sum()).backward()
        return [one.detach().cpu() for one in (out, rest, *(p.grad for p in model.parameters()))]

    def cast():
        with torch.inference_mode(), torch.autocast("card", torch.bfloat16):
            return kind(3, 4).to("card")(on_card(5, 2, 3).bfloat16())[0].dtype

    assert cards.run(cast)[0] is torch.bfloat16
    expected, found = cards.run(run, "cpu")[0], cards.run(run, "card")[0]
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(found, expected, strict=True))


def test_what_no_kernel_of_a_device_in_python_knows(cards):
    """Conjugates, tangents that are zero, a padded batch in evaluation, lengths of ctc on the CPU, and meta."""

    def run(device):
        torch.manual_seed(0)
        wave = torch.randn(6, dtype=torch.complex64).to(device).requires_grad_()
        found = list(torch.autograd.grad(torch.fft.ifft(wave).real.square().sum(), wave))
        w = torch.randn(3, 3).to(device)
        found += torch.func.jvp(lambda x: F.linear(x, w, w[0]) * 2, (w,), (w + 1,))
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).to(device)
        encoder, x = nn.TransformerEncoder(layer, 1).to(device).eval(), torch.randn(2, 3, 4).to(device)
        padding = torch.tensor([[False, False, True], [False] * 3], device=device)
        with torch.no_grad():
            found.append(encoder(x, src_key_padding_mask=padding)[~padding])
        scores = torch.randn(5, 1, 4).to(device).log_softmax(-1)
        found.append(F.ctc_loss(scores, torch.tensor([[1, 2]], device=device), torch.tensor([5]), torch.tensor([2])))
        return [one.cpu() for one in found], str(w.to("meta").device)

    (expected, _), (found, where) = cards.run(run, "cpu")[0], cards.run(run, "card")[0]
    torch.testing.assert_close(found, expected)
    assert where == "meta"


def test_modules_keep_their_ties_and_travel(cards):
    def travel():
        model = GPT(GPTConfig.tiny()).to("card")
        twin, file = copy.deepcopy(model), io.BytesIO()
        torch.save(model.state_dict(), file)
        loaded = []
        for place in (None, "cpu"):
            file.seek(0)
            loaded.append(torch.load(file, map_location=place)["token_embedding.weight"].device.type)
        tied = [one.head.weight is one.token_embedding.weight for one in (model, twin)]
        return tied, loaded, twin.head.weight

    tied, loaded, weight = cards.run(travel)[0]
    assert tied == [True, True] and loaded == ["card", "cpu"] and weight.device.type == "cpu"


def test_a_parameter_with_a_weak_reference_moves_to_the_card(cards):
    def move():
        layer = nn.Linear(2, 2)
        reference = weakref.ref(layer.weight)
        layer.to("card")
        return reference() is layer.weight and layer.weight.device.type

    assert cards.run(move)[0] == "card"


def test_data_of_a_tensor_may_be_the_tensor_itself(cards):
    def assign():
        weight = nn.Parameter(on_card(3))
        weight.data = weight.to("card")  # as FSDP1 does with the second name of a tied weight
        return weight.sum().item()

    assert cards.run(assign)[0] == cards.run(lambda: on_card(3).sum().item())[0]


def test_ranks_on_the_cpu_know_nothing_of_cards(ranks, cards):
    assert cards.run(lambda: hasattr(torch, "card")) == [True] * 2
    assert ranks.run(lambda: hasattr(torch, "card") or torch.autograd.graph.__dict__.get("run_backward")) == [None] * 4


def test_messages_between_cards_are_checked_as_on_the_cpu(cards):
    def send():
        dist.all_reduce(on_card(2 + dist.get_rank()))

    with pytest.raises(RankError, match="all_reduce SUM float32") as error:
        cards.run(send)
    assert error.value.kind == "mismatch"


def test_what_a_model_needs_beside_its_numbers(cards):
    class Numbers(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            asked.append(func is torch.tensor)
            return func(*args, **kwargs or {})

    def facts():
        weight, nothing = nn.Parameter(on_card(2)), on_card(1)
        weight.axis = "tp"
        with torch.inference_mode():
            view = nothing.expand(2)
            weight.data = view
        with Numbers():
            torch.tensor([1.0])
        return weight, view.is_inference(), asked

    asked = []
    weight, is_inference, asked = cards.run(facts)[0]
    assert isinstance(weight, nn.Parameter) and weight.axis == "tp" and weight.device.type == "cpu"
    assert not is_inference and asked == [True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_our_autocast_on_a_card_is_torchs(cards, dtype):
    def gradients(region):
        torch.manual_seed(0)
        model, tokens = GPT(GPTConfig.tiny()).to("card"), torch.arange(32, device="card").view(2, 16)
        with region:
            loss = token_loss(model(tokens), tokens)
        (loss * 256).backward()
        return {"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters()}

    def both():
        ours, theirs = gradients(autocast(dtype, device_type="card")), gradients(torch.autocast("card", dtype))
        return [name for name in ours if not torch.equal(ours[name], theirs[name])]

    assert cards.run(both)[0] == []


# -- wrong input -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options, said",
    [
        (dict(device="card", memory="64 MX"), "memory='64 MX' is no size above 0: give a text such as"),
        (dict(device="card", memory=0), "memory=0 is no size above 0"),
        (dict(device="card", memory="64 TB"), "128 TB, but this machine has .* of memory: use memory="),
        (dict(device="cards"), "or \"card\" .a practice GPU for each rank., but got 'cards'"),
        (dict(device="cpu", memory="64 MB"), "memory='64 MB' is a practice card's: use Ranks"),
    ],
)
def test_wrong_input_gets_a_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        Ranks(2, **options)


def test_a_card_that_comes_after_a_backward_gets_a_sentence():
    code = "import torch; from helpers.devices import cards; torch.ones((), requires_grad=True).backward(); "
    result = subprocess.run([sys.executable, "-c", code + "cards.install(10**6)"], capture_output=True, text=True)
    assert "a backward before its practice card was installed" in result.stderr
