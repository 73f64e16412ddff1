"""A rank under ContextParallel, for the trainings of helpers/observe/training.py."""

import torch.distributed as dist
from torch import nn

from helpers.observe.training import LossShareRanks
from helpers.parallel.context_parallel import ContextParallel
from helpers.parallel.shared.recompute import recompute_blocks


class ContextParallelRank(LossShareRanks):
    """A rank that gets the full batch and trains on its tokens. It starts with other weights than rank 0."""

    def __init__(self, model, training, documents=None, recompute=None, **options):
        if dist.get_rank():
            nn.init.ones_(model.final_norm.bias)  # so that the start from rank 0's weights matters
        super().__init__(model, training)
        self.parallel, self.documents = ContextParallel(model, **options), documents
        if recompute:
            recompute_blocks(model, mode=recompute)

    def forward_backward(self, inputs, targets):
        share = self.parallel.loss(inputs, targets, self.documents)
        share.backward()
        return share.detach()

    def after_backward(self):
        self.parallel.all_reduce_gradients()
