"""A mean over all tokens, whoever holds them."""

import torch
import torch.distributed as dist

from helpers.parallel.ddp.data import count_tokens, token_mean


def test_the_average_of_token_means_is_the_global_mean(ranks):
    values = torch.arange(10.0, dtype=torch.float64)

    def loss():
        mine = values[: dist.get_rank() + 1] if dist.get_rank() < 2 else values[2:]
        total = count_tokens(len(mine))
        mean = token_mean(mine.sum(), total)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        return total, mean.item()

    assert ranks[:3].run(loss) == [(11, values.sum().item() / 11)] * 3


def test_bad_counts_get_a_sentence(ranks):
    def counts():
        sentences = []
        for count in (-1, 0):
            try:
                count_tokens(count)
            except ValueError as error:
                sentences.append(str(error))
        return sentences

    for negative, nothing in ranks[:2].run(counts):
        assert "got -1 tokens" in negative
        assert "no rank has a token" in nothing
