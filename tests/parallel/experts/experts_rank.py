"""Trainings with experts, for helpers/observe/training.py: in one process, and split over ranks."""

import torch
import torch.distributed as dist

from helpers.observe.training import DataParallelRanks, OneProcess
from helpers.parallel.experts import ExpertParallel, balance_loss, expert_layers
from helpers.parallel.experts.experts_on_ranks import global_norm


class ExpertsInOneProcess(OneProcess):
    """Adds the auxiliary loss to the loss, and moves the bias after each step."""

    def forward_backward(self, inputs, targets):
        loss = self.loss(self.forward(inputs), targets)
        (loss + balance_loss(self.model)).backward()
        return loss.detach()

    def step(self, inputs, targets):
        result = super().step(inputs, targets)
        for layer in expert_layers(self.model):
            layer.update_bias()
        return result


class ExpertParallelRank(ExpertsInOneProcess, DataParallelRanks):
    """A rank with its own rows and its own experts; ep: the ranks of a group that shares the experts, None: all."""

    def __init__(self, model, training, ep=None, factor=1.0):
        size, rank, world = ep or dist.get_world_size(), dist.get_rank(), dist.get_world_size()
        groups = [dist.new_group(range(start, start + size)) for start in range(0, world, size)]
        replicas = [dist.new_group(range(start, world, size)) for start in range(size)]
        self.group, self.factor = groups[rank // size], factor
        self.parallel = ExpertParallel(
            model, self.group, data_group=dist.group.WORLD, replica_group=replicas[rank % size]
        )
        super().__init__(model, training)

    def after_backward(self):
        self.parallel.average_gradients()
        for layer in expert_layers(self.model):
            for parameter in layer.experts.parameters():
                parameter.grad *= self.factor  # the planted mistake

    def clip(self, max_norm):
        norm = global_norm(self.model, self.group)
        for parameter in self.model.parameters():
            parameter.grad *= min(1.0, float(max_norm / (norm + 1e-6)))
        return norm

    def state(self):
        """What the ranks of the group have together: all experts, in order."""
        found = {}
        for name, tensor in super().state().items():
            if ".experts." in name:
                pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size(self.group))]
                dist.all_gather(pieces, tensor.contiguous(), group=self.group)
                tensor = torch.cat(pieces)
            found[name] = tensor
        return found
