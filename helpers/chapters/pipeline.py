"""Runs chapter 06: pipeline schedules on live ranks, compared with one process and with PyTorch's runtime.

It also prepares what the chapter counts: messages, and activations at their peak. Most functions take `ranks`, a pool
of live processes, and a schedule, and return numbers or raise. `ranks.run(f)` calls f on every rank and returns the
list of results; functions that say "on a rank" are for it. `ranks[:n]` is the pool's first n ranks. A `Schedule` gives
each rank the order of its forwards and backwards; `one_f_one_b(4, 8)` is that of 4 ranks and 8 micro-batches. Our
`PipelineStage(model, None, schedule, loss=…)` holds the layers of this rank and runs its part of a step; None stands
for the group of all ranks.

A `Training` says what is trained, and `training.under(Strategy, **options)` how: a strategy is a subclass of
`OneProcess`, which is built on each rank with the model and the training. `run()` trains, and `build()` returns the
strategy before its first step.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.observe.equality import Tensors, assert_equal
from helpers.observe.training import KEY_BIAS_ROUNDING, OneProcess, Training
from helpers.parallel.pipeline import MiniPipeline, PipelineStage, partition
from helpers.predict.time.pipeline import simulate
from helpers.quantities.units import format_bytes, format_seconds
from helpers.ranks import RankError, Ranks
from helpers.records import Timeline
from helpers.schedules import Action, Schedule, one_f_one_b, one_f_one_b_with
from helpers.workloads import GPT, GPTConfig, SmallResNet, token_loss

# Rows of the micro-batches and width of the layers whose activations are counted. Both are so large that the inputs, of
# width 8, hardly count.
ROWS, WIDE = 16, 4096


def model_and_batch(kind: str) -> tuple[nn.Module, Tensor, Tensor, object]:
    """A model in float64, inputs, targets and loss.

    kind: "layers" (a chain of 8), "gpt" (whose embedding and head share one tied matrix) or "cnn".
    """
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 68, (8, 8)), torch.randint(0, 8, (8,))  # 68 vocabulary entries, 8 classes
    if kind == "gpt":  # its targets are the tokens themselves, since nothing useful has to be learned
        return GPT(GPTConfig.tiny(context=8, num_layers=3, hidden=16)).double(), tokens, tokens, token_loss
    if kind == "cnn":
        # GroupNorm, because BatchNorm would give other results for micro-batches than for the whole batch.
        model, x = SmallResNet(width=4, norm=lambda channels: nn.GroupNorm(2, channels)), torch.randn(8, 1, 8, 8)
    else:
        model, x = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]), torch.randn(8, 8)
    return model.double(), x.double(), labels, nn.functional.cross_entropy


def training_of(kind: str, steps: int = 3, max_norm: float | None = 0.5) -> Training:
    """Steps of AdamW on the batch of `model_and_batch`, with gradients that are clipped to `max_norm`."""
    return Training(
        model=lambda: model_and_batch(kind)[0],
        batch=lambda step: model_and_batch(kind)[1:3],
        loss=model_and_batch(kind)[3],
        options=dict(lr=1e-2, foreach=False),  # one parameter at a time, which is AdamW's default on a CPU
        steps=steps,
        max_norm=max_norm,
    )


class PipelineRank(OneProcess):
    """A rank that holds the stages which `schedule` gives it. options: of PipelineStage."""

    def __init__(self, model: nn.Module, training: Training, schedule: Schedule, **options):
        self.names = {parameter: name for name, parameter in model.named_parameters()}  # those of the whole model
        stage = PipelineStage(model, None, schedule, loss=training.loss, **options)
        # These take the place of two methods of OneProcess. stage.step returns the loss on the last stage, else None.
        self.forward_backward, self.clip = stage.step, stage.clip_grad_norm_
        super().__init__(stage, training)

    def state(self) -> Tensors:
        """The weights and gradients that this rank holds."""
        parameters = {self.names[one]: one for one in self.model.parameters()}
        gradients = {f"{name}.grad": one.grad for name, one in parameters.items()}
        return {name: one.detach() for name, one in parameters.items()} | gradients


def held_by(model: nn.Module, stage: nn.Module) -> Tensors:
    """On a rank: the weights and gradients of its stage, by their names in the model."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    weights = {names[one]: one.detach().clone() for one in stage.parameters()}
    return weights | {f"{names[one]}.grad": one.grad for one in stage.parameters()}


def compare_with_one_process(by_rank: Sequence[Tensors]) -> str:
    """The verdict on what `held_by` returned on each rank after three steps of AdamW with a learning rate of 0.01."""
    expected = training_of("layers", max_norm=None).run()
    return _compare({name: tensor for name, tensor in expected.items() if name != "losses"}, by_rank)


def equal_to_one_process(ranks: Ranks, schedule: Schedule, kind: str = "layers", **options) -> str:
    """The verdict on losses, norms, gradients and weights of every rank. options: of PipelineStage.

    The verdict is a line such as "equal: 16 tensors, …"; raises AssertionError where a rank differs.
    """
    training = training_of(kind)
    trained = training.under(PipelineRank, schedule=schedule, **options)
    return _compare(training.run(), ranks[: schedule.num_ranks].run(trained.run))


def torch_equal_to_one_process(ranks: Ranks, schedule: Schedule) -> str:
    """The verdict on the gradients of PyTorch's pipeline runtime, which runs our schedule."""
    expected = training_of("layers", steps=1).build()
    expected.forward_backward(*expected.training.batch(0))
    gradients = {name: parameter.grad for name, parameter in expected.model.named_parameters()}
    return _compare(gradients, ranks[: schedule.num_ranks].run(gradients_by_torch, schedule))


def exchange_between_two_ranks(ranks: Ranks, send: str) -> str:
    """Say how many messages each rank received, or what ranks that hang report.

    send: as `exchange_messages` takes it.
    """
    return _exchange(ranks, send)[0]


def exchange_by_blocking_sends(ranks: Ranks) -> tuple[str, str]:
    """The report of `exchange_between_two_ranks` with blocking sends, and an answer of the notebook's question."""
    return _exchange(ranks, "send")


def _exchange(ranks: Ranks, send: str) -> tuple[str, str]:
    """The report, and who waits: an answer of the question, or the report's first line where it is none of them."""
    try:
        return f"messages received by ranks 0 and 1: {ranks[:2].run(exchange_messages, send)}", "it runs to the end"
    except RankError as error:
        report = error.words.in_("en")
        wait = "both wait forever in a send" if "ranks 0, 1 wait in send" in report else report.partition("\n")[0]
        return str(error), wait


def exchange_messages(send: str) -> int:
    """On a rank of two: the messages of 1F1B with two micro-batches, by "send" or "isend". How many were received."""
    rank, works, received = dist.get_rank(), [], 0
    for action in one_f_one_b(2, 2).actions[rank]:
        if (action.kind == "F") == (rank == 0):  # activations go to rank 1, their gradients to rank 0
            works.append(getattr(dist, send)(torch.zeros(8), 1 - rank))
        else:
            dist.recv(torch.zeros(8), 1 - rank)
            received += 1
    for work in filter(None, works):  # isend gives a handle; send has waited already
        work.wait()
    return received


def run_as_chain(model: nn.Module, x: Tensor) -> str:
    """Say what happens to the output if a model runs as the chain of its children, as a choice of 06.children."""
    try:
        equal = nn.Sequential(*model.children())(x).allclose(model(x))
    except RuntimeError:
        return "an error"
    return "the same output" if equal else "other numbers, and no error"


def bubble_beside_gpipe(gpipe: Timeline, other: Timeline) -> str:
    """Say how large another step's bubble is compared with GPipe's, as a choice of 06.against_gpipe."""
    answers = ("smaller than GPipe's", "as large as GPipe's", "larger than GPipe's")
    return _compared(other.bubble_fraction, gpipe.bubble_fraction, answers)


def length_beside_h1(h1: Timeline, h2: Timeline) -> str:
    """Say how long a step of ZB-H2 is compared with ZB-H1, as a choice of 06.h2."""
    return _compared(h2.duration, h1.duration, ("shorter than ZB-H1's", "exactly as long", "longer than ZB-H1's"))


def _compared(value: float, other: float, answers: tuple[str, str, str]) -> str:
    """The answer for a value that is less than the other, equal but for rounding, or more."""
    less, equal, more = answers
    return equal if math.isclose(value, other, rel_tol=1e-9) else less if value < other else more


class Recorder(MiniPipeline):
    """Writes the order of a loop down as a list of actions. It computes nothing and sends nothing."""

    def __init__(self, rank: int, num_stages: int):
        self.rank, self.num_stages = rank, num_stages
        self.previous = self.next = None  # without a neighbour, `exchange` returns at once

    def start(self, inputs, targets):
        self.row, self.num_backwards, self.loss = [], 0, None

    def forward(self, j, x):
        self.row.append(f"{self.rank}F{j}")

    def backward(self, dy):
        self.row.append(f"{self.rank}B{self.num_backwards}")
        self.num_backwards += 1


def recorded(loop: str, rank: int, num_stages: int, num_microbatches: int) -> list[str]:
    """The actions of a rank in a loop of MiniPipeline, "gpipe" or "one_f_one_b", without a process group."""
    recorder = Recorder(rank, num_stages)
    getattr(recorder, loop)([None] * num_microbatches, [None] * num_microbatches)
    return recorder.row


def shortest_step(num_microbatches: int, in_flight: int, **times: float) -> float:
    """Seconds of the fastest step of 1F1B on four ranks whose rank 0 has so many micro-batches in flight.

    Rank 0 starts with `in_flight` forwards. Of the other ranks, every warm-up is tried that is not longer than the one
    before it. times: as `simulate` takes them.
    """
    warm_ups = (
        (in_flight, one, two, three)
        for one in range(1, in_flight + 1)
        for two in range(1, one + 1)
        for three in range(1, two + 1)
    )
    return min(simulate(one_f_one_b_with(each, num_microbatches), **times).duration for each in warm_ups)


def dualpipe_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """PyTorch's DualPipeV as data: rank r has the stages r and 2p - 1 - r of p ranks.

    Raises ValueError for fewer micro-batches than stages, as PyTorch does.
    """
    from torch.distributed.pipelining.schedules import ScheduleDualPipeV

    if num_microbatches < 2 * num_ranks:
        raise ValueError(f"DualPipeV needs as many micro-batches as stages: {2 * num_ranks}, not {num_microbatches}")
    maker = object.__new__(ScheduleDualPipeV)  # only its order is needed, and that needs no process group
    maker.pp_group_size, maker._n_microbatches, maker._num_stages = num_ranks, num_microbatches, 2 * num_ranks
    rows = ([Action.parse(str(one)) for one in maker._calculate_single_rank_operations(r)] for r in range(num_ranks))
    return Schedule("dualpipe_v", 2 * num_ranks, num_microbatches, tuple(map(tuple, rows)), 2)


def link_table(message: float, forward: float, parts: int) -> str:
    """Text with a row for each link: how long a message of so many bytes takes, whole and in `parts` parts at once.

    forward: seconds of a stage's forward, of which the table gives the share.
    """
    rows = [f"{'link':10}  {format_bytes(message) + ' per message':30}  {format_bytes(message / parts)} per message"]
    for gigabits in (10, 100, 400):
        seconds = [num_bytes / (gigabits * 1e9 / 8) for num_bytes in (message, message / parts)]
        whole, in_parts = (f"{format_seconds(each)}, {each / forward:.2g} of the forward" for each in seconds)
        rows.append(f"{f'{gigabits} Gb/s':10}  {whole:30}  {in_parts}")
    return "\n".join(rows)


def bytes_by_axis(parameters: float, layers: int, message: float, degrees: dict[str, int]) -> Iterator[str]:
    """Lines that say what one GPU sends on each axis of a job, in bf16, with rings for collectives.

    parameters, layers: of the whole model. message: bytes of a stage's output. degrees: "pp", "tp" and "dp".
    """
    pp, tp, dp = (degrees[axis] for axis in ("pp", "tp", "dp"))
    ring = {size: 2 * (size - 1) / size for size in (tp, dp)}  # how many times its tensor a rank sends
    yield f"pp, per micro-batch and forward:  {format_bytes(message)}"
    yield f"tp, per micro-batch and forward:  {format_bytes(2 * layers / pp * ring[tp] * message)}"
    yield f"dp, once per step:                {format_bytes(ring[dp] * 2 * parameters / pp / tp)}"


class TiedRun(NamedTuple):
    """A training of a GPT whose tied matrix is on two ranks.

    apart: the largest difference of the two replicas of the matrix, before the first step and after each.
    """

    apart: list[float]
    losses: list[float]

    @property
    def what_is_seen(self) -> str:
        """What somebody sees who looks at the loss alone: an answer of the notebook's question."""
        first, last = self.losses[0], self.losses[-1]
        if not math.isfinite(last):
            return "the loss becomes NaN"
        return "nothing: the loss falls" if last < first else "the loss stays flat"


def train_tied(ranks: Ranks, *, exchange: bool, steps: int = 10) -> TiedRun:
    """Train a GPT whose tied matrix is on the first and on the last of four ranks; its `what_is_seen` is for 06.tied.

    exchange: whether these two add up their gradients of the matrix, or forget to.
    """
    (first, _), *_, (last, losses) = ranks[:4].run(_train_tied_stage, exchange, steps)  # replicas and losses by rank
    apart = [(a - b).abs().max().item() for a, b in zip(first, last, strict=True)]
    return TiedRun(apart, losses)


# ---- on a rank ----


def gradients_by_torch(schedule: Schedule) -> Tensors:
    """One step of PyTorch's engine with this schedule; returns the gradients that this rank holds."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    model, x, y, loss_of = model_and_batch("layers")
    names = {parameter: name for name, parameter in model.named_parameters()}
    parts, local = partition(model, schedule.num_stages), schedule.stages_of(dist.get_rank())
    cpu, last = torch.device("cpu"), schedule.num_stages - 1
    stages = [pipelining.PipelineStage(parts[s], s, schedule.num_stages, cpu) for s in local]
    runtime = _PipelineScheduleRuntime(stages, n_microbatches=schedule.num_microbatches, loss_fn=loss_of)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schedule.csv")
        path.write_text(schedule.to_csv(), encoding="utf-8")
        runtime._load_csv(str(path))
    inputs = (x,) if 0 in local else ()  # only the first stage takes inputs, and only the last one targets
    targets = dict(target=y, losses=[]) if last in local else {}  # the runtime fills the list of losses
    runtime.step(*inputs, **targets)
    return {names[q]: q.grad for s in local for q in parts[s].parameters()}


def wide_stage(schedule: Schedule) -> tuple[PipelineStage, Tensor, Tensor]:
    """On a rank: its stage, of which a micro-batch keeps `one_microbatch_bytes()`, with inputs and targets."""
    layers = [nn.Sequential(nn.Linear(8, WIDE), nn.Tanh(), nn.Linear(WIDE, 8)) for _ in range(schedule.num_stages)]
    return _after_first_step(layers, schedule, ROWS)


def one_microbatch_bytes() -> int:
    """What a micro-batch keeps of the wide layer of `wide_stage`, in fp32."""
    return 4 * ROWS * WIDE


def small_stage(schedule: Schedule) -> tuple[PipelineStage, Tensor, Tensor]:
    """On a rank: its stages, each of one small layer, with inputs and targets."""
    return _after_first_step([nn.Linear(8, 8) for _ in range(schedule.num_stages)], schedule, rows=2)


def stage_and_batch(mesh) -> tuple[nn.Sequential, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """On a rank of a mesh of 2 pp x 2 dp: its four layers, and inputs and targets of its replica's 8 micro-batches."""
    model, x, y = _sharded_case()
    first, replica = 4 * mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    return model[first : first + 4], x.chunk(2)[replica].chunk(8), y.chunk(2)[replica].chunk(8)


def assert_right_gradients(stage: nn.Sequential, mesh) -> None:
    """On a rank of the mesh: raise AssertionError unless the sharded gradients are those of one process."""
    model, x, y = _sharded_case()
    nn.functional.mse_loss(model(x), y).backward()
    first = 4 * mesh.get_local_rank("pp")
    expected = {name: one.grad for name, one in model[first : first + 4].named_parameters()}
    assert_equal(expected, {name: one.grad.full_tensor() for name, one in stage.named_parameters()})


def _sharded_case() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A chain of eight layers in float64, and 32 inputs and targets of width 8."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]).double()
    return model, torch.randn(32, 8).double(), torch.randn(32, 8).double()


def _train_tied_stage(exchange: bool, steps: int) -> tuple[list[Tensor], list[float]]:
    """This rank's replica of the token embedding, if it has one, before and after each step; the losses on the last."""
    training = training_of("gpt", max_norm=None).under(PipelineRank, schedule=one_f_one_b(dist.get_world_size(), 4))
    rank = training.build()
    if not exchange:
        rank.model.tied = []  # the list of matrices whose gradients two stages add up
    embeddings = [one for one in rank.model.parameters() if rank.names[one] == "token_embedding.weight"]
    replicas, losses = [parameter.detach().clone() for parameter in embeddings], []
    for step in range(steps):
        loss, _ = rank.step(*training.batch(step))
        replicas += [parameter.detach().clone() for parameter in embeddings]
        losses += [] if loss is None else [loss.item()]
    return replicas, losses


def _after_first_step(layers: list, schedule: Schedule, rows: int, **options) -> tuple[PipelineStage, Tensor, Tensor]:
    """A rank's stage after the first step, in which stages agree on shapes; its inputs, and its labels, all class 0.

    layers: one per stage, of width 8 at both ends. rows: of a micro-batch. options: of PipelineStage.
    """
    stage = PipelineStage(layers, None, schedule, loss=nn.functional.cross_entropy, **options)
    torch.manual_seed(0)
    count = rows * schedule.num_microbatches
    x, y = torch.randn(count, 8), torch.zeros(count).long()
    stage.step(x, y)
    return stage, x, y


def _compare(expected: Tensors, by_rank: Sequence[Tensors]) -> str:
    """Compare what each rank holds, a tied matrix on both of its owners; then that together they hold everything.

    KEY_BIAS_ROUNDING is the tolerance for the gradient of attention's key bias, which is rounding noise only.
    """
    together: Tensors = {}
    for tensors in by_rank:
        assert_equal({name: expected[name] for name in tensors}, tensors, atol=KEY_BIAS_ROUNDING)
        together |= tensors
    return assert_equal(expected, together, atol=KEY_BIAS_ROUNDING)
