"""Trains a GPT on up to two axes at once by PyTorch's own parts, so that `compose.Trainer` can be compared with it.

`compose.Trainer` is this course's trainer. A `Plan` says how many ranks each axis has:

    tp   parallelize_module on a DeviceMesh, and loss_parallel
    pp   torch.distributed.pipelining, with the stages of `partition`
    dp   zero=3: fully_shard; zero=0: DistributedDataParallel, which takes no DTensors, so without tp

The parts are applied in the Trainer's order. The GPT must be untied, because parallelize_module splits a tied matrix in
two. Gradients are not clipped, because `get_total_norm` refuses gradients on different meshes, and the gradients of
LayerNorm weights, which every tp rank has in full, are on another mesh than the gradients of the sharded matrices.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from helpers.compose.forward_backward import IGNORED
from helpers.devices import computing_device
from helpers.parallel.pipeline import partition
from helpers.specs import Plan
from helpers.workloads import GPT, token_loss

COLUMNS = ("attention.query", "attention.key", "attention.value", "feed_forward.up")
TENSOR_PLAN = {
    "token_embedding": RowwiseParallel(input_layouts=Replicate()),
    **{f"blocks.*.{name}": ColwiseParallel() for name in COLUMNS},
    "blocks.*.attention.projection": RowwiseParallel(),
    "blocks.*.feed_forward.down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}


class TorchTrainer:
    """Like `compose.Trainer`: on every rank, `step(tokens, targets)` takes the global batch and returns its mean loss.

    options: of AdamW. runner: a module, or with pp a schedule. ValueError for plans and models not named at the top.
    """

    def __init__(self, model: GPT, plan: Plan, **options):
        _check(model, plan)
        device = computing_device(dist.group.WORLD).type
        mesh = init_device_mesh(device, (plan.pp, plan.dp, plan.tp), mesh_dim_names=("pp", "dp", "tp"))
        self.plan, self.mesh, self.model = plan, mesh, model
        if plan.tp > 1:
            parallelize_module(model, mesh["tp"], TENSOR_PLAN)
        self.part: nn.Module = partition(model, plan.pp)[mesh.get_local_rank("pp")] if plan.pp > 1 else model
        local = {id(parameter) for parameter in self.part.parameters()}
        self.local_names = [name for name, parameter in model.named_parameters() if id(parameter) in local]
        self.runner = self._data_parallel(mesh)
        if plan.pp > 1:
            self.runner = self._pipeline(mesh, device)
        # Without foreach, which needs tensors of one kind: DTensors and plain ones stand side by side.
        self.optimizer = torch.optim.AdamW(self.part.parameters(), foreach=False, **options)

    def _data_parallel(self, mesh) -> nn.Module:
        """What is called instead of the model: wrapped for the dp axis, unless that has one rank."""
        if self.plan.zero == 3:
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh["dp"])
            return fully_shard(self.model, mesh=mesh["dp"])
        if self.plan.dp == 1:
            return self.part
        return nn.parallel.DistributedDataParallel(self.part, process_group=mesh.get_group("dp"))

    def _pipeline(self, mesh, device: str):
        """The schedule that runs this rank's stage of the pipeline."""
        index, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
        stage = pipelining.PipelineStage(self.runner, index, self.plan.pp, torch.device(device), group=group)
        loss = lambda output, target: token_loss(output, target, reduction="sum") / self.total  # noqa: E731
        # scale_grads=False, because the loss is divided by the tokens of all micro-batches already.
        return pipelining.Schedule1F1B(stage, self.plan.num_microbatches, loss_fn=loss, scale_grads=False)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """One step of the global batch on this rank. Returns the mean loss over all tokens that count."""
        replica = self.mesh.get_local_rank("dp")
        # dp averages over its replicas, which divides by dp once more, so here we divide by tokens / dp: the number of
        # targets that count in the global batch, divided by dp.
        self.total = int((targets != IGNORED).sum()) / self.plan.dp
        x, y = (each.chunk(self.plan.dp)[replica] for each in (tokens, targets))
        self.optimizer.zero_grad()
        with loss_parallel() if self.plan.tp > 1 else nullcontext():
            loss = self._run_pipeline(x, y) if self.plan.pp > 1 else self._run_model(x, y)
        self.optimizer.step()
        for axis in ("pp", "dp"):
            dist.all_reduce(loss, group=self.mesh.get_group(axis))
        return loss / self.plan.dp

    def _run_model(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward and backward of all micro-batches. Returns their summed loss, divided by `total`."""
        m, losses = self.plan.num_microbatches, []
        for micro_x, micro_y in zip(x.chunk(m), y.chunk(m), strict=True):
            loss = token_loss(self.runner(micro_x), micro_y, reduction="sum") / self.total
            loss.backward()
            losses.append(_full_tensor(loss))
        return torch.stack(losses).sum()

    def _run_pipeline(self, x: Tensor, y: Tensor) -> Tensor:
        """The same as `_run_model`, through the pipeline. A rank without the last stage has no loss and returns 0."""
        index, last = self.mesh.get_local_rank("pp"), self.plan.pp - 1
        losses: list[Tensor] = []
        last_only = dict(target=y, losses=losses) if index == last else {}
        self.runner.step(*([x] if index == 0 else []), **last_only)
        zero = torch.zeros((), dtype=next(self.part.parameters()).dtype, device=x.device)
        return torch.stack([_full_tensor(loss) for loss in losses]).sum() if losses else zero

    def full_state(self) -> dict[str, Tensor]:
        """The full weights by their names in the plain model, on every rank."""
        parameters = dict(self.model.named_parameters())
        by_stage: list = [None] * self.plan.pp
        local = {name: _full_tensor(parameters[name]) for name in self.local_names}
        dist.all_gather_object(by_stage, local, group=self.mesh.get_group("pp"))
        return {name: tensor for weights in by_stage for name, tensor in weights.items()}


def _full_tensor(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def _check(model: GPT, plan: Plan) -> None:
    """Raises ValueError for a model or plan that is not named at the top of this file. cp: context parallelism."""
    if model.config.tied or plan.cp > 1 or plan.zero not in (0, 3) or (plan.zero and plan.pp > 1):
        raise ValueError(
            f"TorchTrainer got a GPT with tied={model.config.tied} and {plan}: give an untied one, and of ZeRO stage 0 "
            "alone, or stage 3 without a pipeline"
        )
    if plan.zero == 0 and plan.dp > 1 and plan.tp > 1:
        raise ValueError("TorchTrainer: DistributedDataParallel takes no DTensors; with dp and tp set zero=3")
