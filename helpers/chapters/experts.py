"""Runs and draws chapter 14: a layer of experts in one process and on ranks, its load, and the gradients of experts.

Functions that take `ranks`, a pool of live processes, are called in the notebook; `ranks.run(f)` calls f on every rank
and returns the list of results. Names that end in `_scene` return a Scene, a picture. Legend: T = tokens, h = hidden,
E = experts, k = choices of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from helpers.draw import Axis, Part, Scene, curves_scene, mesh_scene, parts_scene
from helpers.draw.chapters.experts import dispatch_scene
from helpers.draw.scene import stacked_scene
from helpers.observe.comms import record_comms
from helpers.observe.equality import Tensors, assert_equal
from helpers.observe.training import KEY_BIAS_ROUNDING, DataParallelRanks, Training, check_predicted
from helpers.parallel.experts import ExpertParallel, MixtureOfExperts, count_choices, expert_layers, route, with_experts
from helpers.parallel.experts.experts_on_ranks import global_norm, split_gradients
from helpers.parallel.experts.layer import balance_loss
from helpers.parallel.tensor_parallel.splits import even_split, gather_full_tensor
from helpers.predict.time.dualpipe import DualPipeParts
from helpers.predict.time.stacks import DEEPSEEK
from helpers.predict.time.step import dualpipe_step_parts, step_time
from helpers.predict.traffic.expert_messages import expert_parallel_traffic
from helpers.ranks import Ranks
from helpers.records import CommLog
from helpers.specs import GPUS, LINKS, ROUTED, Cluster, Plan
from helpers.specs.hardware import INTRA
from helpers.specs.mesh import Mesh
from helpers.workloads import GPT, GPTConfig, characters, token_loss

NUM_EXPERTS, TOP_K, SEQUENCES, CONTEXT = 8, 2, 32, 32  # of this chapter's GPT, and of its batch


# ---- what a layer is ----


def opening_scene() -> Scene:
    """Two rows per token, before dispatch and after it, on four ranks with two experts each."""
    torch.manual_seed(0)
    experts = route(torch.randn(4, 8, NUM_EXPERTS).flatten(0, 1), TOP_K)[0]
    title = "4 ranks, 8 experts, top 2: each token is sent to the ranks of its two experts"
    return dispatch_scene(experts.view(4, 8, TOP_K).tolist(), NUM_EXPERTS, title=title)


# ---- one layer, in one process and on ranks ----


def new_gpt(**config) -> GPT:
    """A small GPT with 8 experts per layer, of which a token gets 2 by sigmoid scores."""
    options = dict(num_experts=NUM_EXPERTS, top_k=TOP_K, expert_hidden=32, router="sigmoid", **config)
    return with_experts(GPT(GPTConfig.tiny(context=CONTEXT)), **options)


@cache
def trained_weights(steps: int) -> Tensors:
    """The weights of `new_gpt` after so many steps in one process, in float64, without any help for balance."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for such small tensors, more threads take longer
    torch.manual_seed(0)
    model = new_gpt().double()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        inputs, targets = characters().batch(step, 16, CONTEXT)
        optimizer.zero_grad()
        token_loss(model(inputs), targets).backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return model.state_dict()


def gpt_with(weights: Tensors) -> GPT:
    model = new_gpt().double()
    model.load_state_dict(weights)
    return model


def second_layer(steps: int = 10) -> tuple[MixtureOfExperts, Tensor]:
    """The second layer of experts of a GPT after `steps` steps, and 1,024 tokens of text as they reach it, (T, h)."""
    model, found = gpt_with(trained_weights(steps)), []
    layer = expert_layers(model)[1]
    hook = layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].detach().flatten(0, 1)))
    with torch.no_grad():
        model(characters().batch(10, SEQUENCES, CONTEXT)[0])
    hook.remove()
    return layer, found[0]


def busiest_percent(load: Sequence[int]) -> float:
    """The percentage of all tokens that choose the busiest expert. load: the choices of each expert, k per token."""
    return round(100 * max(load) * TOP_K / sum(load), 1)


def named(out: Tensor, x: Tensor, layer: MixtureOfExperts) -> Tensors:
    """The output, and the gradients of tokens and weights, by name."""
    gradients = {f"{name}.grad": parameter.grad for name, parameter in layer.named_parameters()}
    return {"output": out.detach(), "x.grad": x.grad} | gradients


def on_a_rank(
    compute: Callable[..., Tensor], layer: MixtureOfExperts, tokens: Tensor
) -> tuple[Tensors, list[CommLog], list[int]]:
    """On a rank: output and gradients, joined from all ranks; this rank's messages; its choices of each expert.

    compute(x, layer) gets this rank's tokens and the layer with this rank's experts. The messages are those of forward
    and those of backward.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, full in list(layer.experts.named_parameters()):
        setattr(layer.experts, name, nn.Parameter(full.detach().chunk(size)[rank].clone()))
    x = tokens.chunk(size)[rank].clone().requires_grad_()
    with record_comms() as forward:
        out = compute(x, layer)
    with record_comms() as backward:
        out.square().sum().backward()
    found: list = [None] * size
    dist.all_gather_object(found, named(out, x, layer))
    joined = {name: torch.cat([one[name] for one in found]) for name in found[0] if not name.startswith("router")}
    joined["router.weight.grad"] = sum(one["router.weight.grad"] for one in found)  # of the tokens of all ranks
    choices = count_choices(route(layer.router(x), TOP_K, "sigmoid")[0], NUM_EXPERTS)
    return joined, [forward.log, backward.log], choices.tolist()


def compare_layer(
    ranks: Ranks, compute: Callable[..., Tensor], dtype: torch.dtype = torch.float64
) -> tuple[list[list[CommLog]], str]:
    """Run a layer on the ranks. Returns for each rank the messages of forward and of backward, and a verdict.

    AssertionError where output or gradients differ from those of one process, RuntimeError where a rank passed other
    messages than predicted.
    """
    layer, tokens = (each.to(dtype) for each in second_layer())
    found, logs, rows = zip(*ranks.run(on_a_rank, compute, layer, tokens), strict=True)
    x = tokens.clone().requires_grad_()
    out = layer(x)
    out.square().sum().backward()
    for rank, (forward, backward) in enumerate(logs):
        predicted = expert_parallel_traffic(rows, rank=rank, hidden=x.shape[1], dtype_bytes=x.element_size())
        measured = [event.payload_bytes for event in (*forward.events, *backward.events)]
        check_predicted(measured, [event.payload_bytes for event in predicted.events], f"rank {rank} ")
    return list(logs), assert_equal(named(out, x, layer), list(found))


def messages_scene(logs: Sequence[Sequence[CommLog]]) -> Scene:
    """The payloads of dispatch and combine of each rank, in forward. logs: as `compare_layer` returns them."""
    rows, ends = {}, {}
    for rank, (forward, _) in enumerate(logs):
        _, dispatch, combine = (event.payload_bytes for event in forward.events)
        rows[f"rank {rank}"] = [
            Part(text="dispatch", kind="communication", size=dispatch),
            Part(text="combine", kind="buffers", size=combine),
        ]
        ends[f"rank {rank}"] = f"{dispatch:,} B and {combine:,} B"
    title = "Bytes that each rank passes to dispatch and to combine in forward, measured"
    return parts_scene(rows, ends=ends, title=title)


# ---- trainings ----


class ExpertRank(DataParallelRanks):
    """A rank with its own rows of the batch and its own experts.

    ep: how many ranks share the experts; None for all. average(dense, experts, data_group, replica_group) completes
    the gradients; None takes ExpertParallel's own. `state` has the experts of all ranks, and "load": the choices of
    each expert, by step and layer.
    """

    def __init__(self, model: nn.Module, training: Training, ep: int | None = None, average: Callable | None = None):
        rank, world = dist.get_rank(), dist.get_world_size()
        size, self.average, self.load = ep or world, average, []
        groups = [dist.new_group(range(start, start + size)) for start in range(0, world, size)]
        replicas = [dist.new_group(range(start, world, size)) for start in range(size)]
        self.group, self.replica_group = groups[rank // size], replicas[rank % size]
        options = dict(data_group=dist.group.WORLD, replica_group=self.replica_group)
        self.parallel = ExpertParallel(model, self.group, **options)
        super().__init__(model, training)

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        found = super().step(inputs, targets)
        self.load.append(torch.stack([layer.counts for layer in expert_layers(self.model)]))
        for layer in expert_layers(self.model):
            layer.update_bias()  # also resets the counts
        return found

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Trains with the language loss and the auxiliary loss, which is 0 unless the model has an alpha."""
        loss = self.loss(self.forward(inputs), targets)
        (loss + balance_loss(self.model)).backward()
        return loss.detach()

    def after_backward(self) -> None:
        if self.average is None:
            self.parallel.average_gradients()
            return
        self.average(*split_gradients(self.model), dist.group.WORLD, self.replica_group)

    def clip(self, max_norm: float) -> Tensor:
        norm = global_norm(self.model, self.group)
        for parameter in self.model.parameters():
            parameter.grad *= min(1.0, float(max_norm / norm))
        return norm

    def state(self) -> Tensors:
        found = super().state()
        split = even_split(NUM_EXPERTS, dist.get_world_size(self.group))
        for name in [name for name in found if ".experts." in name]:
            found[name] = gather_full_tensor(found[name], split, self.group)
        return found | {"load": torch.stack(self.load)}


def training(*, steps: int, sequences: int = SEQUENCES, balance: Mapping | None = None, **options) -> Training:
    """The chapter's training: a GPT with experts on the course's text.

    balance: options of `new_gpt`, bias_rate or alpha. options: fields of Training.
    """
    return Training(
        model=lambda: new_gpt(**(balance or {})), steps=steps,
        batch=lambda step: batch_of(step, sequences), **{"options": dict(lr=3e-3), **options},
    )  # fmt: skip


@cache  # all trainings see the same text, and writing it takes a third of a step
def batch_of(step: int, sequences: int) -> tuple[Tensor, Tensor]:
    """Tokens of a step, and those that follow them, both (sequences, CONTEXT)."""
    return characters().batch(step, sequences, CONTEXT)


def training_verdict(ranks: Ranks) -> str:
    """Three steps on four ranks with their own experts, compared with one process. AssertionError if they differ."""
    three = replace(training(steps=3, sequences=8), model=lambda: new_gpt().double())
    alone, *found = (
        {name: tensor for name, tensor in each.items() if not name.endswith(("load", "counts"))}
        for each in (three.run(), *ranks.run(three.under(ExpertRank).run))
    )
    return assert_equal(alone, found, atol=KEY_BIAS_ROUNDING)


def balance_run(ranks: Ranks, *, steps: int = 150, **balance: float) -> tuple[list[float], float]:
    """For each step the choices of the busiest expert of the second layer over the mean; the mean loss of 50 steps.

    The loss is the language loss of the last 50 steps. balance: bias_rate, or alpha of the auxiliary loss.
    """
    found = ranks.run(training(steps=steps, balance=balance).under(ExpertRank).run)[0]
    load = found["load"][:, 1].double()
    return (load.max(-1).values / load.mean(-1)).tolist(), mean_of_last(found["losses"].tolist())


def mean_of_last(curve: Sequence[float], steps: int = 50) -> float:
    return sum(curve[-steps:]) / steps


def busiest_choice(curve: Sequence[float]) -> str:
    """Where a curve of `balance_run` ends, as a choice of guess `14.alone`."""
    last = mean_of_last(curve)
    return "below 1.3 times" if last < 1.3 else "1.3 to 2 times" if last < 2 else "above 2 times"


def balance_scene(runs: Mapping[str, tuple[Sequence[float], float]]) -> Scene:
    """Curves of `balance_run` by name, each the mean of ten steps; behind its name, where it ends, and the loss."""
    points = {
        f"{name}: {mean_of_last(curve):.2f} (language loss {loss:.2f})": [
            (end, sum(curve[end - 10 : end]) / 10) for end in range(10, len(curve) + 1)
        ]
        for name, (curve, loss) in runs.items()
    }
    title = "Choices of the busiest expert, divided by the mean over all experts"
    return curves_scene(points, x="step", y=Axis(name="times the mean", ticks=(0, 1, 2, 3, 4)), title=title)


# ---- the divisor of the gradients ----


def first_step(ranks: Ranks, average: Callable[..., None] | None, ep: int = 4, **options) -> Tensors:
    """Weights and gradients after one step on four ranks, from a GPT that was trained for 100 steps."""
    weights = trained_weights(100)
    one = replace(training(steps=1, sequences=16, **options), model=lambda: gpt_with(weights))
    return ranks.run(one.under(ExpertRank, ep=ep, average=average).run)[0]


def norm_of(tensors: Tensors, *, of_experts: bool, minus: Mapping[str, Tensor] | None = None) -> float:
    """The norm of the tensors of experts or of all others, together; minus: what is subtracted from each before."""
    chosen = {name: tensor for name, tensor in tensors.items() if (".experts." in name) == of_experts}
    differences = (tensor if minus is None else tensor - minus[name] for name, tensor in chosen.items())
    return sum(each.square().sum() for each in differences).sqrt().item()


PARTS = {"experts": True, "all others": False}  # the parameters in a row of a picture, and whether they are of experts


def norms_scene(ranks: Ranks, average: Callable[..., None]) -> tuple[Scene, float]:
    """How many times too large the gradients of a step are, by norm, and this factor for experts over four ranks.

    average(dense, experts, data_group, replica_group) completes the gradients, as ExpertRank calls it.
    """
    factors, options = {}, dict(max_norm=1e9)  # so that the norm is measured and nothing is clipped
    for ep in (4, 2):
        right, wrong = (first_step(ranks, each, ep, **options) for each in (None, average))
        gradients = [{n: t for n, t in each.items() if n.endswith(".grad")} for each in (wrong, right)]
        for part, of_experts in PARTS.items():
            wrong_norm, right_norm = (norm_of(each, of_experts=of_experts) for each in gradients)
            factors[f"EP {ep}, {part}"] = wrong_norm / right_norm
        factors[f"EP {ep}, norm for clipping"] = (wrong["norms"][0] / right["norms"][0]).item()
    title = "Norm of the gradients with the mistake, divided by the right norm"
    return factors_scene(factors, title=title), factors["EP 4, experts"]


def compare_gradients(ranks: Ranks, average: Callable[..., None]) -> str:
    """All gradients of a step on four ranks with EP 2, compared with one process: equal, or the first difference.

    average: as in `norms_scene`.
    """
    one = replace(training(steps=1, sequences=8), model=lambda: new_gpt().double())
    runs = [one.run(), *ranks.run(one.under(ExpertRank, ep=2, average=average).run)]
    alone, *found = ({name: tensor for name, tensor in run.items() if name.endswith(".grad")} for run in runs)
    try:
        return assert_equal(alone, found, atol=KEY_BIAS_ROUNDING)
    except AssertionError as error:
        return f"not equal yet: {error}"


def steps_scene(ranks: Ranks, average: Callable[..., None]) -> tuple[Scene, str]:
    """How many times too far the weights move in one step, by optimizer, and a choice of guess `14.hides`."""
    factors, before = {}, trained_weights(100)
    optimizers = {"AdamW": {}, "SGD": dict(optimizer=SGD, options=dict(lr=0.1))}
    clipped = {f"{name}, clipped to norm 0.1": options | dict(max_norm=0.1) for name, options in optimizers.items()}
    for name, options in (optimizers | clipped).items():
        found = [first_step(ranks, each, **options) for each in (average, None)]
        moved = [{n: t for n, t in each.items() if n in before} for each in found]
        for part, of_experts in PARTS.items():
            wrong, right = (norm_of(each, of_experts=of_experts, minus=before) for each in moved)
            factors[f"{name}: {part}"] = wrong / right
    shown = [name for name in ("AdamW", "SGD") if factors[f"{name}: experts"] > 2]
    choice = {0: "with neither", 1: f"with {shown[0]}" if shown else "", 2: "with both"}[len(shown)]
    return factors_scene(
        factors, title="How far the weights move in one step with the mistake, divided by the right distance"
    ), choice


def factors_scene(factors: Mapping[str, float], *, title: str) -> Scene:
    """A bar per factor, in one colour for experts and in another for the rest."""
    rows = {
        name: [Part(text="", kind="gradients" if name.endswith("experts") else "buffers", size=factor)]
        for name, factor in factors.items()
    }
    return parts_scene(rows, ends={name: f"{factor:.3f}" for name, factor in factors.items()}, title=title)


def losses_apart(
    ranks: Ranks, average: Callable[..., None], *, max_norm: float | None = None, steps: int = 20
) -> float:  # fmt: skip
    """The largest difference of the losses of AdamW with the mistake and without, in parts of the loss.

    max_norm: clip gradients to this norm.
    """
    one = training(steps=steps, sequences=16, max_norm=max_norm)
    right, wrong = (ranks.run(one.under(ExpertRank, average=each).run)[0]["losses"] for each in (None, average))
    return ((wrong - right).abs() / right).max().item()


# ---- meshes, and a step of DeepSeek-V3 ----


def groups_scene(mesh: Mesh) -> Scene:
    """The groups of rank 0 for dense parameters and for those of experts."""
    dense = mesh_scene(
        mesh, title="Dense parameters: gradients are added up over dp, and divided by dp", names=("dp", "tp")
    )
    title = "Experts: tokens travel over ep; gradients are added up over edp, and divided by dp"
    experts = mesh_scene(mesh, title=title, names=("edp", "ep", "tp"))
    return stacked_scene(dense, experts, title="Which groups average what")


# Zhao et al. 2025 (Insights into DeepSeek-V3), table 4, MPFT: 1F, bubble, 1B, 1W, 1F1B and opt, in seconds.
PUBLISHED_STEP = DualPipeParts(1.13, 2.06, 1.99, 0.48, 13.95, 0.29)
# DeepSeek-V3, sections 3.2 and 4.2. The micro-batch and the division of 61 layers are not published: 1, and 15 x 4 + 1.
V3_PLAN = Plan(
    pp=16, dp=128, ep=64, zero=1, num_microbatches=120, fp8=True, recompute="selective", precision="mixed_fp32_grads",
    last_stage_layers=1,
)  # fmt: skip
_PARTS = {  # field of DualPipeParts -> its kind in the picture, and its name
    "overlapped": ("forward", "forward with backward"), "forward": ("buffers", "forward alone"),
    "backward_input": ("input_grad", "backward alone"), "backward_weight": ("weight_grad", "weight gradients"),
    "bubble": ("waiting", "bubble"), "optimizer": ("optimizer", "optimizer"),
}  # fmt: skip


def dualpipe_scene() -> tuple[Scene, float]:
    """A step of DeepSeek-V3 on 2,048 H800s, published and predicted; and the factor that it takes without DualPipe.

    Without DualPipe, a pipeline of single passes (1F1B) hides no all-to-all, and all else is the same.
    """
    model = ROUTED["deepseek-v3"]
    cluster = Cluster(
        gpu=GPUS["H800"], gpus_per_node=8, num_nodes=256, intra=INTRA["H800"], inter=LINKS["400 Gb/s"], network_cards=8
    )
    predicted = dualpipe_step_parts(model, V3_PLAN, cluster, DEEPSEEK)
    without = {
        "predicted without DualPipe": replace(DEEPSEEK, dualpipe=False),
        "and without deduplication": replace(DEEPSEEK, dualpipe=False, deduplicates=False),
    }
    plain = {name: step_time(model, V3_PLAN, cluster, stack).seconds for name, stack in without.items()}
    rows = {
        name: [Part(text="", kind=kind, size=getattr(parts, field)) for field, (kind, _) in _PARTS.items()]
        for name, parts in {"published": PUBLISHED_STEP, "predicted": predicted}.items()
    }
    rows |= {name: [Part(text="", kind="other", size=seconds)] for name, seconds in plain.items()}
    seconds = (PUBLISHED_STEP.seconds, predicted.seconds, *plain.values())
    ends = {name: f"{each:.1f} s" for name, each in zip(rows, seconds, strict=True)}
    title = "A step of DeepSeek-V3 on 2,048 H800s: 15,360 sequences of 4,096 tokens"
    slower = plain["predicted without DualPipe"] / predicted.seconds
    return parts_scene(rows, ends=ends, legend=dict(_PARTS.values()), title=title), slower
