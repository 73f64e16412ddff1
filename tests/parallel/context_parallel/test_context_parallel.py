"""A whole GPT on sequence shards trains like one process: losses, gradients and weights of three steps."""

import pytest
import torch
import torch.nn.functional as F

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.training import KEY_BIAS_ROUNDING, OneProcess, Training, beside_one_process
from helpers.parallel.context_parallel import METHODS, ContextParallel, document_starts, shifted_labels
from helpers.ranks import RankError
from helpers.workloads import GPT, GPTConfig, token_loss
from helpers.workloads.gpt import fused_attention
from tests.parallel.context_parallel.context_parallel_rank import ContextParallelRank

DOCUMENTS = torch.tensor([[0] * 9 + [1] * 4 + [2] * 13, [0] * 13 + [1] * 13])  # of two sequences of 26 tokens


def gpt(**changes):
    """12 heads, so that 2, 3 and 4 ranks can share them; grouped queries with 3 or 4 ranks and one key head."""
    return GPT(GPTConfig.tiny(**{**dict(num_heads=12, hidden=48), **changes})).double()


def batch(step, documents=None):
    """26 tokens per sequence, which neither 3 nor 4 ranks nor twice as many chunks divide."""
    tokens = torch.randint(68, (2, 26), generator=torch.Generator().manual_seed(step))
    return tokens, shifted_labels(tokens, documents)


def training(batch=batch, **config):
    return Training(model=lambda: gpt(**config), batch=batch, options=dict(lr=1e-2), steps=3)


class PackedInOneProcess(OneProcess):
    """The reference for packed documents: positions that restart, and a mask."""

    def __init__(self, model, training, documents):
        super().__init__(model, training)
        starts = document_starts(documents)
        index = torch.arange(starts.shape[1])
        mask = (index <= index[:, None]) & (starts[:, None, :, None] == starts[:, None, None, :])

        def core(query, key, value, *, dropout_p, is_causal):
            return fused_attention(query, key, value, attn_mask=mask)

        for block in model.blocks:
            block.attention.core = core
        self.forward = lambda tokens: model(tokens, index - starts)


@pytest.mark.parametrize("zigzag", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_every_rank_equals_one_process(world, method, zigzag):
    beside_one_process(world, training().under(ContextParallelRank, method=method, zigzag=zigzag))


@pytest.mark.parametrize("method", METHODS)
def test_grouped_queries_and_an_untied_head(ranks, method):
    grouped = training(num_kv_heads=1, tied=False)
    beside_one_process(ranks[:3], grouped.under(ContextParallelRank, method=method))


@pytest.mark.parametrize("method", METHODS)
def test_packed_documents_equal_one_process_with_a_mask(world, method):
    """The context is shorter than the sequence, because positions restart with each document."""
    packed = training(lambda step: batch(step, DOCUMENTS), context=13)
    alone = packed.under(PackedInOneProcess, documents=DOCUMENTS).run()
    strategy = packed.under(ContextParallelRank, method=method, documents=DOCUMENTS)
    beside_one_process(world, strategy, alone)


def test_documents_matter():
    """What is compared above is not the same without documents."""
    packed = training(lambda step: batch(step, DOCUMENTS))
    alone = packed.under(PackedInOneProcess, documents=DOCUMENTS).run()
    with pytest.raises(AssertionError, match="differs"):
        assert_equal(alone, packed.run(), atol=KEY_BIAS_ROUNDING)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_blocks_send_again_and_equal_one_process(ranks, mode):
    beside_one_process(ranks[:2], training().under(ContextParallelRank, recompute=mode))


def test_ranks_with_different_numbers_of_labels_weigh_each_token_equally(ranks):
    def step():
        torch.manual_seed(0)
        model, (tokens, _) = gpt(), batch(0)
        labels = torch.full_like(tokens, -100)
        labels[:, :5] = tokens[:, 1:6]  # only the first rank of a contiguous split has labels
        parallel = ContextParallel(model, zigzag=False)
        share = parallel.loss(tokens, labels)
        share.backward()
        parallel.all_reduce_gradients()
        return share.item(), {name: each.grad for name, each in model.named_parameters()}

    torch.manual_seed(0)
    model, (tokens, _) = gpt(), batch(0)
    loss = token_loss(model(tokens)[:, :5], tokens[:, 1:6])
    loss.backward()
    shares, gradients = zip(*ranks[:3].run(step), strict=True)
    assert shares[0] == pytest.approx(loss.item(), rel=1e-12) and shares[1:] == (0.0, 0.0)
    expected = {name: each.grad for name, each in model.named_parameters()}
    assert_equal(expected, gradients, atol=KEY_BIAS_ROUNDING)


def test_micro_batches_are_divided_by_the_labels_of_the_global_batch(ranks):
    """The two micro-batches have 25 labels and 5."""

    def labelled():
        tokens, labels = batch(0)
        labels[1, 5:] = -100
        return tokens, labels

    def gradients():
        torch.manual_seed(0)
        parallel, (tokens, labels) = ContextParallel(gpt()), labelled()
        for row in (slice(0, 1), slice(1, 2)):
            parallel.loss(tokens[row], labels[row], num_labels=30).backward()
        parallel.all_reduce_gradients()
        return {name: each.grad for name, each in parallel.model.named_parameters()}

    torch.manual_seed(0)
    model, (tokens, labels) = gpt(), labelled()
    token_loss(model(tokens), labels).backward()
    expected = {name: each.grad for name, each in model.named_parameters()}
    assert_equal(expected, ranks[:2].run(gradients), atol=KEY_BIAS_ROUNDING)


def test_logits_are_those_of_the_ranks_tokens(ranks):
    def logits():
        torch.manual_seed(0)
        parallel, (tokens, _) = ContextParallel(gpt()), batch(0)
        return parallel(tokens), parallel.shard(tokens)

    torch.manual_seed(0)
    model, (tokens, _) = gpt(), batch(0)
    first, shard = ranks[:2].run(logits)[0]
    own = torch.tensor([*range(7), *range(20, 26)])
    assert torch.equal(shard, tokens[:, own])
    torch.testing.assert_close(first, model(tokens)[:, own], rtol=1e-10, atol=1e-12)


def test_gradients_are_all_reduced_once_per_step(ranks):
    def payload():
        parallel, (tokens, labels) = ContextParallel(gpt()), batch(0)
        parallel.loss(tokens, labels).backward()
        with record_comms() as recorder:
            parallel.all_reduce_gradients()
        return recorder.log.ops(), recorder.log.payload_bytes() - 8 * parallel.model.config.num_parameters

    assert ranks[:2].run(payload) == [(("all_reduce",), 0)] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContextParallel(gpt(), method="star"), "method='star'; known are ring, all_gather, all_to_all"),
        (lambda: ContextParallel(gpt(dropout=0.1)), "a model with dropout=0.1"),
        (lambda: ContextParallel(gpt())(torch.zeros(1, 1, dtype=torch.long)), "sequences of 1 tokens for 2 ranks"),
        (lambda: ContextParallel(gpt(context=8))(torch.zeros(1, 9, dtype=torch.long)), "a document of 9 tokens"),
    ],
)
def test_bad_input_gives_a_sentence(ranks, make, message):
    with pytest.raises(RankError, match=message):
        ranks[:2].run(make)


def test_attention_alone_would_ignore_other_ranks(ranks):
    """The mistake behind all of this: each rank attends to its own tokens only, and nothing fails."""

    def without_messages():
        torch.manual_seed(0)
        model, (tokens, _) = gpt(), batch(0)
        parallel = ContextParallel(model, zigzag=False)
        expected = parallel(tokens)
        for block in model.blocks:
            block.attention.core = lambda *tensors, **options: F.scaled_dot_product_attention(*tensors, is_causal=True)
        return torch.allclose(parallel(tokens), expected)

    assert ranks[:2].run(without_messages) == [True, False]
