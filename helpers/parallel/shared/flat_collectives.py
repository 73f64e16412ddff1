"""Two collectives on whole tensors, by the names that this torch has: 2.13 renamed both; 2.11 serves, too."""

import torch.distributed as dist

reduce_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # (output, input)
all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # (output, input)
