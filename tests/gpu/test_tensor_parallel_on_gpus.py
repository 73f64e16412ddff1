"""A GPT cut over GPUs equals one GPU: losses and weights of a few steps in float64, dropout included."""

import pytest
import torch
import torch.distributed as dist

from helpers.observe.equality import assert_equal
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.tensor_parallel import gather_full_state, shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.ranks import RankError
from helpers.workloads import GPT, GPTConfig, token_loss
from tests.gpu.device import KIND, NUM_GPUS

STEPS = 4


def train(cut: bool, dropout: float = 0.0, sequence_parallel: bool = False, num_ranks: int = 1):
    """Heads, tokens and hidden size are multiples of the ranks; the vocabulary is not, so it is padded."""
    torch.manual_seed(0)
    shape = dict(vocab_size=70 * num_ranks + 1, context=4 * num_ranks, hidden=8 * num_ranks, num_heads=2 * num_ranks)
    model = GPT(GPTConfig.tiny(**shape, dropout=dropout, attention="materialized")).double().to(KIND)
    loss_of = token_loss
    if cut:
        shard_tensor_parallel(model, dist.group.WORLD, sequence_parallel=sequence_parallel)
        loss_of = vocab_parallel_cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    tokens = torch.randint(0, shape["vocab_size"], (STEPS, 4, shape["context"]), device=KIND)
    history = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(tokens[step]), tokens[step])
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.5, group=dist.group.WORLD if cut else None)
        optimizer.step()
        history[f"{step} loss"] = loss.detach().cpu()
    state = gather_full_state(model) if cut else model.state_dict()
    return history | {name: tensor.cpu() for name, tensor in state.items()}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_cut_gpt_equals_one_gpu(on_nccl, sequence_parallel, dropout):
    expected = train(False, dropout, num_ranks=NUM_GPUS)
    found = on_nccl.run(train, True, dropout, sequence_parallel, NUM_GPUS)
    assert_equal(expected, found, atol={"*.key.bias": 1e-12})  # its gradient is rounding noise


def seeds_found():
    torch.manual_seed(dist.get_rank())
    shard_tensor_parallel(GPT(GPTConfig.tiny(num_heads=8)).to(KIND), dist.group.WORLD)


def test_other_seeds_are_found_on_gpus_too(on_nccl):
    if NUM_GPUS == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(RankError, match="rank 1 holds another"):
        on_nccl.run(seeds_found)
