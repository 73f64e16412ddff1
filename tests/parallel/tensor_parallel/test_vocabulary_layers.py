"""The two ends of a model with the vocabulary cut, against torch's own embedding and cross entropy."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel.layers import VocabParallelEmbedding, vocab_parallel_cross_entropy
from helpers.ranks import RankError

VOCAB = 10


def logits_and_targets(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(3, 4, VOCAB, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, VOCAB, (3, 4), generator=generator)
    targets[0, 1] = targets[2, 3] = -100
    return logits, targets


def own_logits(logits):
    """This rank's columns, padded with -inf."""
    n, rank = dist.get_world_size(), dist.get_rank()
    share = -(-VOCAB // n)
    return F.pad(logits, (0, share * n - VOCAB), value=-torch.inf).narrow(-1, rank * share, share).clone()


def cut_loss(scale, reduction):
    logits, targets = logits_and_targets(scale)
    own = own_logits(logits).requires_grad_()
    with record_comms() as recorder:
        loss = vocab_parallel_cross_entropy(own, targets, None, reduction)
    with record_comms() as backward:
        loss.backward()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.grad)
    sent = [(event.op, event.payload_bytes) for event in recorder.log.events]
    return {"loss": loss.detach(), "grad": torch.cat(parts, -1)[..., :VOCAB]}, sent, len(backward.log.events)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_loss_equals_torchs_and_sends_three_numbers_a_token(world, scale, reduction):
    logits, targets = logits_and_targets(scale)
    logits.requires_grad_()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    loss.backward()
    results = world.run(cut_loss, scale, reduction)
    assert_equal({"loss": loss.detach(), "grad": logits.grad}, [found for found, _, _ in results])
    for _, sent, in_backward in results:
        assert sent == ([] if len(world) == 1 else [("all_reduce", 12 * 8), ("all_reduce", 2 * 12 * 8)])
        assert in_backward == 0


def test_sixteen_bits_are_counted_in_float32(ranks):
    def loss():
        logits, targets = logits_and_targets()
        own = own_logits(logits.bfloat16()).requires_grad_()
        found = vocab_parallel_cross_entropy(own, targets)
        found.backward()
        return found.dtype, found.item(), own.grad.dtype

    logits, targets = logits_and_targets()
    expected = F.cross_entropy(logits.bfloat16().float().flatten(0, 1), targets.flatten()).item()
    assert ranks[:2].run(loss) == [(torch.float32, pytest.approx(expected, rel=1e-6), torch.bfloat16)] * 2


def test_the_logits_are_left_as_they_are(ranks):
    def same():
        own = own_logits(logits_and_targets()[0])
        before = own.clone()
        vocab_parallel_cross_entropy(own, logits_and_targets()[1])
        return torch.equal(own, before)

    assert ranks[:3].run(same) == [True] * 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda logits, targets: (logits, targets[:2], "mean"), "targets must have the logits' shape"),
        (lambda logits, targets: (logits, targets, "none"), "reduction is 'mean' or 'sum'"),
        (lambda logits, targets: (logits, targets + VOCAB, "mean"), "but the vocabulary has 10 entries"),
        (lambda logits, targets: (logits, targets - 3, "mean"), "got ids from -103"),
    ],
)
def test_bad_input_to_the_loss_gets_a_sentence(ranks, change, sentence):
    def loss():
        logits, targets = logits_and_targets()
        logits, targets, reduction = change(logits, targets)
        vocab_parallel_cross_entropy(own_logits(logits), targets, None, reduction)

    with pytest.raises(RankError, match=sentence):
        ranks[:2].run(loss)


def embedding():
    torch.manual_seed(0)
    return nn.Embedding(VOCAB, 4).double()


def tokens():
    return torch.randint(0, VOCAB, (3, 12), generator=torch.Generator().manual_seed(1))


def cut_embedding(sequence_dim):
    layer = VocabParallelEmbedding(embedding(), sequence_dim=sequence_dim)
    n, rank = dist.get_world_size(), dist.get_rank()
    y = layer(tokens())
    weights = torch.arange(3 * 12 * 4, dtype=torch.float64).view(3, 12, 4)
    own_weights = weights if sequence_dim is None else weights.chunk(n, sequence_dim)[rank]
    (y * own_weights).sum().backward()
    parts = [torch.empty_like(layer.weight) for _ in range(n)]
    dist.all_gather(parts, layer.weight.grad)
    return y.detach(), torch.cat(parts)


@pytest.mark.parametrize("sequence_dim", [None, 1])
def test_the_embedding_equals_torchs(world, sequence_dim):
    plain = embedding()
    y = plain(tokens())
    (y * torch.arange(3 * 12 * 4, dtype=torch.float64).view(3, 12, 4)).sum().backward()
    for rank, (found, gradient) in enumerate(world.run(cut_embedding, sequence_dim)):
        assert torch.equal(found, y.detach() if sequence_dim is None else y.detach().chunk(len(world), 1)[rank])
        assert torch.equal(gradient[:VOCAB], plain.weight.grad)
        assert not gradient[VOCAB:].any()  # the padding never learns


def test_bad_input_to_the_embedding_gets_a_sentence(ranks):
    with pytest.raises(RankError, match="got ids from 0 to 10, but the vocabulary has 10 entries"):
        ranks[:3].run(lambda: VocabParallelEmbedding(embedding())(torch.arange(11)))
    with pytest.raises(RankError, match="leave out padding_idx"):
        ranks[:2].run(lambda: VocabParallelEmbedding(nn.Embedding(4, 2, padding_idx=0)))
