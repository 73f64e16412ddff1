"""Provides what the cells of the interview chapter call: pictures, comparisons with one process, and lines of text.

The cells show the subject's own code, such as the loop that loses work to failures. The
functions here run this code on live ranks, compare it with one process, or format what it found. "Lines" are one text.
Where a docstring names a guess, such as guess `interview.batch`, the cell passes the first returned value to `reveal`,
or the value that the docstring names. That value is one of the guess's choices, or its number (the rule is in
helpers/chapters/__init__.py). "Model states" are the weights, the gradients and the optimizer states. The sections:

how many GPUs                    the model states of a model, and the GPUs that hold them
which strategy                   who talks to whom on each axis, and what the planner advises on each network
claims                           wrong and true claims to judge
the compiler and new weights     graphs that torch.compile gets; what PPO and GRPO need, which generate with new weights
a job that runs for months       how often to save, slow steps in a log, and going on with fewer ranks
older questions                  LLaMA 65B on four V100s, the planner's answers, and two very wide layers
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from helpers.draw import Scene, memory_scene
from helpers.interview.card_html import fold
from helpers.interview.cards import NotebookCell
from helpers.interview.reference_tables import Myth, Myths, Refutation, myths
from helpers.learner.document import section
from helpers.learner.words import book
from helpers.predict.advice import Advice, advise
from helpers.predict.advice.fit import USABLE_SHARE as USABLE
from helpers.predict.failures import daly_interval, job_mtbf, lost_share, young_interval
from helpers.predict.memory import model_states
from helpers.predict.memory.capacity import gpus_needed
from helpers.predict.memory.fine_tuning import kv_cache_bytes, lora, qlora, rl_states, weight_sync_seconds
from helpers.predict.time.collectives import tokens_that_hide
from helpers.ranks import Ranks
from helpers.specs import CLUSTERS, GPUS, LINKS, PRESETS, ModelSpec, Plan

H100, V100 = GPUS["H100"], GPUS["V100"]


# -- how many GPUs ---------------------------------------------------------------------------------------------------
def opening_scene() -> Scene:
    """The model states of two models on one GPU, with the memory of an H100."""
    names = {"GPT-2 XL": "gpt2-xl", "Llama-3 8B": "llama3-8b"}
    states = {name: model_states(PRESETS[preset].num_params, Plan()) for name, preset in names.items()}
    title = "Model states between two steps, on one GPU"
    return memory_scene(states, capacity=H100.memory, capacity_name="one H100", title=title)


def sharded_states_scene(num_params: int) -> Scene:
    """The model states per GPU under ZeRO-3 on 16, 32 and 64 GPUs."""
    states = {f"ZeRO-3 on {size}": model_states(num_params, Plan(dp=size, zero=3)) for size in (16, 32, 64)}
    title = f"Model states of {num_params / 1e9:.0f}B parameters per GPU"
    usable = f"{100 * USABLE:.0f} % of {H100.memory / 1e9:.0f} GB"
    return memory_scene(states, capacity=USABLE * H100.memory, capacity_name=usable, title=title)


def gpu_counts(models: Sequence[int]) -> str:
    """Lines for models with these numbers of parameters: the H100s that hold the model states, in three counts."""
    lines = []
    for num_params in models:
        total = model_states(num_params, Plan()).total
        full, usable = (gpus_needed(total, H100.memory, usable=share) for share in (1.0, USABLE))
        nodes = gpus_needed(total, H100.memory, usable=USABLE, per_node=8)
        counts = f"{full} GPUs of {H100.memory / 1e9:.0f} GB, {usable} with {USABLE:.0%} usable, {nodes} in whole nodes"
        lines.append(f"{num_params / 1e9:3.0f}B: {total / 1e9:,.0f} GB; {counts}")
    return "\n".join(lines)


# -- which strategy --------------------------------------------------------------------------------------------------
def axis_lines(plan: Plan, sent: Mapping[str, float], *, rank: int) -> str:
    """Lines: with whom a rank talks on each axis, on how many nodes of eight GPUs, and `sent`, its bytes per step."""
    place = plan.mesh.coordinates(rank)
    lines = [f"{plan.world_size} GPUs; rank {rank} is " + ", ".join(f"number {place[axis]} on {axis}" for axis in sent)]
    for axis, num_bytes in sent.items():
        members = plan.mesh.ranks_along(axis, rank)
        nodes = len({member // 8 for member in members})
        where = f"ranks {', '.join(map(str, members))} on {nodes} node{'s' * (nodes > 1)}"
        lines.append(f"{axis}: sends {num_bytes / 1e9:6.1f} GB per step; {where}")
    return "\n".join(lines)


def lines_by_network(model: str, networks: Sequence[tuple[int, str]]) -> str:
    """Lines: for each network (cards per node, name of their link) a number of tokens, and the planner's advice.

    It is the number of tokens per GPU and micro-batch from which compute takes longer than ZeRO-3's messages.
    """
    lines = []
    for cards, link in networks:
        cluster = replace(CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"], inter=LINKS[link], network_cards=cards)
        enough, chosen = tokens_that_hide(cluster), advise(PRESETS[model], cluster).chosen
        plan = chosen.plan_text.partition(", ")[0] if chosen else "nothing fits"
        lines.append(f"H100, {cards} x {link:<9} per node: from {enough:9,.0f} tokens on; planner, {model}: {plan}")
    return "\n".join(lines)


# -- claims ----------------------------------------------------------------------------------------------------------
true_claims = book("true_claims")  # id -> its texts, in every language
SHOWN_BY = {
    "zero-1-sends-like-ddp": ("08_zero", "traffic-table"),
    "one-f-one-b-idles-as-long": ("06_pipeline", "emulate"),
}
TRUE_CLAIMS = tuple(  # Myths without a run, so that one layout of cards serves wrong and true claims
    Myth(
        id=claim, claim=true_claims[f"{claim}.claim"], truth=true_claims[f"{claim}.truth"], run="", finds=(),
        shown_by=NotebookCell(notebook=notebook, anchor=anchor),
    )
    for claim, (notebook, anchor) in SHOWN_BY.items()
)  # fmt: skip


class Claims:
    """The claims with these names (`shown`), each with its answer folded; in one fold the `others` that are wrong."""

    def __init__(self, names: Sequence[str]) -> None:
        by_name = {one.id: one for one in (*myths(), *TRUE_CLAIMS)}
        self.shown = Myths(by_name.pop(name) for name in names)
        self.others = Myths(one for one in by_name.values() if one not in TRUE_CLAIMS)

    def __repr__(self) -> str:
        claims = "\n".join(f"- {one.claim.en}" for one in self.shown)
        return f"Claims to judge: {len(self.shown)}, and {len(self.others)} more wrong claims\n{claims}"

    def _repr_html_(self) -> str:
        summary = f"{len(self.others)} more wrong claims · 另外 {len(self.others)} 条错误的说法"
        return section(self.shown.document, fold(summary, self.others.document)).html


def refuted_line(refutations: Sequence[Refutation]) -> str:
    """How many claims were run and refuted. AssertionError where a run found something else than the text says."""
    problems = [sentence for one in refutations for sentence in one.problems]
    assert not problems, problems
    return f"This wrong claim and {len(refutations) - 1} others were run on four ranks; each run contradicts its claim"


# -- the compiler and new weights ------------------------------------------------------------------------------------
class Block(nn.Module):
    """A residual block with two linear layers of 1 MiB each in fp32. x: (batch, 256); returns the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class EightBlocks(nn.Module):
    """Eight equal blocks, one after the other. x: (batch, 256); returns the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


Prepare = Callable[[nn.Module, Callable, DeviceMesh], nn.Module]


def linear_layers_by_graph(prepare: Prepare) -> list[int]:
    """Count the linear layers in each graph that the compiler gets in one step of EightBlocks.

    Guess `interview.regional`: `reveal` gets their sum where each block is compiled alone. prepare(model, compiler,
    mesh) may wrap the model with FSDP2 or DDP on `mesh`, which is this process alone; `compiler` only counts.
    """
    counts: list[int] = []

    def compiler(graph: Any, inputs: Any) -> Callable:
        counts.append(sum("linear" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    with _one_process_group() as mesh:
        torch._dynamo.reset()
        torch._logging.set_logs(all=logging.ERROR)
        model = prepare(EightBlocks(), compiler, mesh)
        model(torch.ones(4, 256, requires_grad=True)).sum().backward()
    return counts


@contextmanager
def _one_process_group() -> Iterator[DeviceMesh]:
    """A process group of this process alone, and a mesh over it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def compiled_lines(ways: Mapping[str, Sequence[int]]) -> str:
    """Lines: the graphs of each way to compile, by name, with their linear layers."""
    return "\n".join(
        f"{name:<34}{len(counts)} graph{'s' * (len(counts) > 1)}, {sum(counts)} linear layers: {list(counts)}"
        for name, counts in ways.items()
    )


def whole_under_ddp(model: nn.Module, compiler: Callable, mesh: DeviceMesh) -> nn.Module:
    """The model under DDP with buckets of 2 MiB, compiled as a whole."""
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group(), bucket_cap_mb=2)
    return torch.compile(wrapped, backend=compiler)


def post_training_lines(num_params: int) -> str:
    """Lines: the bytes of PPO and GRPO, the time to send new weights after a step, and the bytes of the answers."""
    lines, grpo = [], dict(critic=False)
    for name, models in {"PPO": {}, "GRPO": grpo, "GRPO, rewards by rule": grpo | dict(reward_model=False)}.items():
        total = rl_states(num_params, **models)
        least, rented = (gpus_needed(total, H100.memory, usable=USABLE, per_node=size) for size in (1, 8))
        gpus = f"{least} H100s, {rented} in whole nodes"
        lines.append(f"{name:<22} {total / num_params:.0f} bytes per parameter, {total / 1e12:.2f} TB: {gpus}")
    for num_links in (1, 8):
        seconds = weight_sync_seconds(num_params, LINKS["400 Gb/s"], num_links=num_links)
        size = f"{2 * num_params / 1e9:.0f} GB of new weights"
        lines.append(f"{size} over {num_links} x 400 Gb/s: {seconds:.2f} s on the network")
    cache = kv_cache_bytes(PRESETS["llama3-70b"], tokens=256 * 4096)
    lines.append(f"256 answers of 4,096 tokens: {cache / 1e9:.0f} GB of keys and values")
    return "\n".join(lines)


# -- a job that runs for months --------------------------------------------------------------------------------------
def interval_lines(share_lost: Callable[[float, float, float], float], *, save: float, gpu_mtbf: float) -> str:
    """Lines for two numbers of GPUs: how often to save, and what is lost to saving and to failures.

    That is the share of time lost at that interval, at a quarter of it, and at four times it. share_lost(interval,
    save, mtbf) simulates failures, all in seconds. save: how long a checkpoint stops the job. gpu_mtbf: seconds between
    failures of one GPU. AssertionError where one of the other two intervals loses less, or where the share from the
    simulation, which is random, differs from that of the formula by 1 % of the job's time or more.
    """
    lines = []
    for gpus in (1024, 16_384):
        mtbf = job_mtbf(gpu_mtbf, gpus)
        best, daly = young_interval(save, mtbf), daly_interval(save, mtbf)
        often, right, rarely = (share_lost(factor * best, save, mtbf) for factor in (1 / 4, 1, 4))
        assert right < min(often, rarely) and abs(right - lost_share(best, save, mtbf)) < 0.01
        lines.append(f"{gpus:>6,} GPUs: a failure every {mtbf / 3600:4.1f} h, so save every {best / 60:.1f} min")
        lines.append(f"        (Daly {daly / 60:.1f}); lost {right:.1%}; 4 x as often {often:.1%}, rarely {rarely:.1%}")
    return "\n".join(lines)


def slow_step_lines() -> str:
    """Write lines for guess `interview.slow`, to which `reveal` gets no value: two causes of slow steps in a log.

    If a step takes 0.8 s in place of 0.5 s, the number of steps from one slow step to the next stays the same for a
    cause in the loop, and the minutes stay the same for a cause outside. AssertionError where they do not.
    """
    lines = []
    for name, every_steps in {"a cause in the loop": True, "a cause outside": False}.items():
        (steps, _), (steps_later, _) = found = [_periods(_end_times(seconds, every_steps)) for seconds in (0.5, 0.8)]
        same = "steps" if steps == steps_later else "minutes"
        assert same == ("steps" if every_steps else "minutes")
        periods = ", then ".join(f"every {steps} steps = {minutes} min" for steps, minutes in found)
        lines.append(f"{name}: {periods}; the same in {same}")
    return "\n".join(lines)


def _end_times(step_seconds: float, every_steps: bool, steps: int = 20_000) -> list[float]:
    """When each step ends. A slow one takes 30 times as long; it comes every 2,400 steps, or every 1,200 seconds."""
    times, now, due = [], 0.0, 1200.0
    for step in range(1, steps + 1):
        is_slow = step % 2400 == 0 if every_steps else now >= due
        due += 1200.0 if is_slow and not every_steps else 0.0
        now += (30 if is_slow else 1) * step_seconds
        times.append(now)
    return times


def _periods(times: Sequence[float]) -> tuple[int, int]:
    """Steps and minutes from one slow step to the next, in the mean."""
    took = [end - start for start, end in zip([0, *times], times, strict=False)]
    slow = [place for place, seconds in enumerate(took) if seconds > 3 * took[0]]
    gaps = len(slow) - 1
    return round((slow[-1] - slow[0]) / gaps), round((times[slow[-1]] - times[slow[0]]) / gaps / 60)


TrainState = tuple[Tensor, Tensor, int]  # weights, momentum, samples read


def resumed_on_three(ranks: Ranks, three_steps: Callable[..., TrainState]) -> tuple[str, str]:
    """Find the batch with which three ranks continue like one process, as a choice of guess `interview.batch`.

    three_steps(data, state, global_batch) trains three steps on the ranks that call it. Four ranks with 3 samples each
    train first, and three ranks continue from their state.
    """
    torch.manual_seed(0)
    data = torch.randn(72, 5).double()
    start = (torch.zeros(5).double(), torch.zeros(5).double(), 0)
    half_way_alone = ranks[:1].run(three_steps, data, start, 12)[0]
    alone = ranks[:1].run(three_steps, data, half_way_alone, 12)[0]
    saved = ranks.run(three_steps, data, start, 12)[0]
    equal, lines = [], []
    for name, batch in {"4 samples per rank, 12 in all": 12, "3 samples per rank, 9 in all": 9}.items():
        weight, _, seen = ranks[:3].run(three_steps, data, saved, batch)[0]
        is_same = torch.allclose(weight, alone[0], rtol=1e-10)
        equal += [batch // 3] if is_same else []
        verdict = "equal to" if is_same else "different from"
        lines.append(f"3 ranks, {name}: {seen} samples read, {verdict} the run of one process")
    (samples,) = equal
    return f"{samples} samples per rank", "\n".join(lines)


# -- older questions -------------------------------------------------------------------------------------------------
LLAMA_65B = ModelSpec(
    num_layers=80, hidden=8192, num_heads=64, ffn_hidden=22_016, vocab=32_000, seq=2048, gated=True,
    tied_embeddings=False, bias=False, norm="rms", positions="rope",
)  # fmt: skip
TWO_WIDE_LAYERS = ModelSpec(num_layers=2, hidden=14_336, num_heads=112, vocab=50_257, seq=1024)


def ways_on_four_v100s() -> tuple[str, str]:
    """Find the only way to train LLaMA 65B that fits four V100s, for guess `interview.v100`, and describe three ways.

    AssertionError where the memory that the device reports decides otherwise than the data sheet's.
    """
    states = {
        "all weights": model_states(LLAMA_65B.num_params, Plan()).total,
        "16-bit weights with LoRA": lora(LLAMA_65B, rank=16).total,
        "4-bit weights with QLoRA only": qlora(LLAMA_65B, rank=16).total,
    }
    fitting, lines = [], []
    for name, total in states.items():
        fits, by_reported = (total / 4 < USABLE * memory for memory in (V100.memory, V100.reported))
        assert fits == by_reported
        fitting += [name] if fits else []
        verdict = "fits" if fits else "does not fit"
        lines.append(f"{name:<30}{total / 1e9:8.1f} GB in all{total / 4e9:7.1f} GB per card   {verdict}")
    full = gpus_needed(states["all weights"], V100.memory, usable=USABLE)
    lines.append(f"V100s for full training: {full}")
    (only,) = fitting
    return only, "\n".join(lines)


def planner_answers(questions: Mapping[str, tuple[str, str]]) -> tuple[dict[str, str], str]:
    """Ask the planner each question. Returns question -> strategy or "nothing fits", and the lines with its plans.

    Guess `interview.small`: `reveal` gets the strategy for the model on one RTX 4090. questions: name -> (preset of a
    model, name of a cluster).
    """
    said, lines = {}, []
    for name, (model, cluster) in questions.items():
        found = advise(PRESETS[model], CLUSTERS[cluster])
        said[name] = found.strategy or "nothing fits"
        title, plan = (found.chosen.title, found.chosen.plan_text) if found.chosen else (said[name], found.remarks[0])
        lines.append(f"{name:<36}{title:<15}{plan}")
    return said, "\n".join(lines)


def two_wide_layers() -> tuple[Advice, Scene]:
    """Ask the planner about a model of two very wide layers on four V100s, and draw the memory of four strategies.

    Guess `interview.largest`: `reveal` gets the `strategy` of the advice.
    """
    found = advise(TWO_WIDE_LAYERS, CLUSTERS["4 V100"])
    needs = {name: found[name].memory for name in ("PP", "ZeRO-1", "ZeRO-3", "TP")}
    title = "Two very wide layers on four V100s"
    return found, memory_scene(needs, capacity=found.request.usable, capacity_name="usable", title=title)
