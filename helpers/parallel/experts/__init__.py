"""Expert parallelism: the feed-forward of a layer becomes many experts, which are split over ranks.

expert_parallel.py    route, dispatch, compute, combine, with both all-to-alls and their backward, in plain torch
layer.py              MixtureOfExperts: a layer in one process; a GPT with such layers
balance.py            the auxiliary loss, and the bias that balances without one
capacity.py           drops what is more than an expert's capacity
experts_on_ranks.py   ExpertParallel: splits the experts of a model, and says how its gradients are averaged

Begin with expert_parallel.py.
"""

from helpers.parallel.experts.balance import auxiliary_loss, count_choices, update_bias
from helpers.parallel.experts.capacity import drop_over_capacity, expert_capacity
from helpers.parallel.experts.expert_parallel import expert_parallel, route
from helpers.parallel.experts.experts_on_ranks import ExpertParallel
from helpers.parallel.experts.layer import ExpertsConfig, MixtureOfExperts, balance_loss, expert_layers, with_experts

__all__ = [
    "ExpertParallel",
    "ExpertsConfig",
    "MixtureOfExperts",
    "auxiliary_loss",
    "balance_loss",
    "count_choices",
    "drop_over_capacity",
    "expert_capacity",
    "expert_layers",
    "expert_parallel",
    "route",
    "update_bias",
    "with_experts",
]
