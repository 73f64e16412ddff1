"""A rank under our Zero3, for the trainings of helpers/observe/training.py."""

from helpers.observe.training import DataParallelRanks
from helpers.parallel.zero import Zero3


class Zero3Rank(DataParallelRanks):
    """options: of Zero3."""

    def __init__(self, model, training, **options):
        super().__init__(Zero3(model, **options), training)

    def clip(self, max_norm):
        return self.model.clip_grad_norm_(max_norm)

    def state(self):
        return self.model.full_state()
