"""The models: shapes, exact parameter counts, determinism, and sentences for bad input."""

import math

import pytest
import torch
from torch import nn

from helpers.observe.equality import assert_equal, state_of
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, characters, digits, resnet_parameters, token_loss
from helpers.workloads.gpt import fused_attention


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def small(**changes):
    return GPTConfig(**{**dict(vocab_size=11, context=7, num_layers=3, num_heads=2, hidden=8), **changes})


@pytest.mark.parametrize("sizes", [[5, 3], [64, 128, 10], [4, 4, 4, 4]])
def test_mlp_counts_and_shapes(sizes):
    model = MLP(sizes)
    assert count(model) == sum(a * b + b for a, b in zip(sizes[:-1], sizes[1:], strict=True))
    assert model(torch.ones(2, sizes[0])).shape == (2, sizes[-1])


def test_mlp_gives_logits_not_probabilities():
    torch.manual_seed(0)
    out = MLP([64, 32, 10])(torch.randn(16, 64))
    assert (out < 0).any() and not torch.allclose(out.sum(1), torch.ones(16))


@pytest.mark.parametrize("sizes", [[3], [], [3, 0], [4, -1, 2]])
def test_mlp_refuses_bad_sizes(sizes):
    with pytest.raises(ValueError, match=r"expected|give at least two widths"):
        MLP(sizes)


@pytest.mark.parametrize(
    "config",
    [
        small(),
        small(tied=False),
        small(num_layers=1, num_heads=8),
        GPTConfig.tiny(),
        small(num_kv_heads=1),
        GPTConfig.tiny(num_kv_heads=2),
    ],
)
def test_gpt_parameter_count_is_exact(config):
    assert count(GPT(config)) == config.num_parameters


def test_gpt_formula_as_written_in_the_file():
    config = small()
    h, layers, vocabulary, context = 8, 3, 11, 7
    by_hand = 12 * layers * h**2 + 13 * layers * h + (vocabulary + context) * h + 2 * h
    assert config.num_parameters == by_hand
    assert small(tied=False).num_parameters == by_hand + vocabulary * h


def test_presets():
    assert GPTConfig.tiny().num_parameters == 28_672
    assert GPTConfig.ten_million().num_parameters == 10_698_240
    assert GPTConfig.tiny(dropout=0.1).dropout == 0.1
    assert GPTConfig.tiny().attention == "flash"
    assert GPTConfig.tiny().vocab_size == characters(10).vocab_size


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gpt_attention_spelled_out_equals_torchs(dropout):
    states = []
    for attention in ("flash", "materialized"):
        torch.manual_seed(0)
        model = GPT(small(attention=attention, dropout=dropout)).double()
        tokens = torch.randint(11, (2, 7))
        token_loss(model(tokens), tokens).backward()
        states.append(state_of(model))
    assert_equal(*states, atol={"*.key.bias.grad": 1e-12})  # zero in theory


@pytest.mark.parametrize("attention, maps", [("flash", 0), ("materialized", 1)])
def test_gpt_attention_keeps_the_maps_only_where_it_says_so(attention, maps):
    model, kept = GPT(small(attention=attention, num_layers=1)), {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        model(torch.zeros(3, 7, dtype=torch.long))
    assert sum(t.numel() == 3 * 2 * 7 * 7 for t in kept.values()) == maps  # B H T T


@pytest.mark.parametrize("attention", ["flash", "materialized"])
def test_grouped_queries_equal_copied_key_and_value_heads(attention):
    """Each key and value head, copied for the query heads that share it, gives a GPT without groups."""
    torch.manual_seed(0)
    grouped = GPT(GPTConfig.tiny(num_heads=4, num_kv_heads=2, attention=attention)).double()
    whole = GPT(GPTConfig.tiny(num_heads=4, attention=attention)).double()
    state = grouped.state_dict()
    for name, tensor in state.items():
        if ".key." in name or ".value." in name:  # two heads of 8 rows: a a b b
            state[name] = tensor.unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
    whole.load_state_dict(state)
    tokens = torch.randint(68, (2, 7))
    torch.testing.assert_close(grouped(tokens), whole(tokens), rtol=1e-12, atol=1e-12)


def test_as_many_key_and_value_heads_as_heads_change_nothing():
    models = []
    for config in (GPTConfig.tiny(), GPTConfig.tiny(num_kv_heads=4)):
        torch.manual_seed(0)
        models.append(GPT(config))
    tokens = torch.randint(68, (2, 7))
    assert torch.equal(models[0](tokens), models[1](tokens))


def test_a_core_gets_keys_and_values_with_their_own_number_of_heads():
    model, shapes = GPT(GPTConfig.tiny(num_heads=4, num_kv_heads=2)), []

    def core(query, key, value, **options):
        shapes.append((query.shape, key.shape, value.shape))
        return fused_attention(query, key, value, **options)

    tokens = torch.randint(68, (2, 7))
    expected = model(tokens)
    for block in model.blocks:
        block.attention.core = core
    assert torch.equal(model(tokens), expected)
    assert shapes == [((2, 4, 7, 8), (2, 2, 7, 8), (2, 2, 7, 8))] * 2


def test_positions_may_restart_and_then_the_context_limits_a_document():
    model, tokens = GPT(GPTConfig.tiny(context=4)), torch.randint(68, (2, 7))
    assert torch.equal(model(tokens[:, :4]), model(tokens[:, :4], torch.arange(4)))
    assert model(tokens, torch.tensor([[0, 1, 2, 3, 0, 1, 2], [0, 1, 0, 1, 2, 0, 1]])).shape == (2, 7, 68)
    with pytest.raises(ValueError, match="7 tokens a sequence, its context is 4"):
        model(tokens)


def test_gpt_is_causal():
    model = GPT(small()).double()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = tokens.clone()
    changed[0, 4] = 9
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_gpt_tied_weights_are_one_tensor():
    tied, untied = GPT(small()), GPT(small(tied=False))
    assert tied.head.weight is tied.token_embedding.weight
    assert untied.head.weight is not untied.token_embedding.weight


def test_the_key_bias_has_no_gradient_in_theory():
    torch.manual_seed(0)
    model = GPT(small()).double()
    tokens = torch.randint(11, (4, 7))
    token_loss(model(tokens), tokens).backward()
    attention = model.blocks[0].attention
    assert attention.key.bias.grad.norm() < 1e-12 < attention.query.bias.grad.norm()


def test_gpt_starts_at_the_loss_of_a_uniform_guess():
    torch.manual_seed(0)
    model, (tokens, targets) = GPT(GPTConfig.tiny()), characters(5000).batch(0, 16, 32)
    assert token_loss(model(tokens), targets).item() == pytest.approx(math.log(68), abs=0.1)


def test_gpt_is_the_same_for_the_same_seed_and_works_in_eval_with_dropout():
    tokens = torch.arange(6).view(1, 6)
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(GPT(small(dropout=0.5)).eval())
    assert torch.equal(models[0](tokens), models[1](tokens))
    assert not torch.equal(models[0].train()(tokens), models[1](tokens))


def test_gpt_learns_the_corpus():
    torch.manual_seed(0)
    corpus, model = characters(20_000), GPT(GPTConfig.tiny())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        tokens, targets = corpus.batch(step, 8, 32)
        loss = token_loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1.0


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(hidden=9), "9"),
        (dict(num_heads=3), "divides"),
        (dict(num_kv_heads=0), "num_kv_heads=0.*choose a number that divides 2"),
        (dict(num_kv_heads=4), "num_heads=2, num_kv_heads=4"),
        (dict(vocab_size=0), "vocab_size"),
        (dict(dropout=1.0), "below 1"),
        (dict(num_layers=0), "num_layers"),
        (dict(attention="fast"), "'flash' or 'materialized'"),
    ],
)
def test_gpt_config_refuses_with_a_sentence(changes, words):
    with pytest.raises(ValueError, match=words):
        small(**changes)


def test_gpt_refuses_a_long_sequence_and_misfit_targets():
    with pytest.raises(ValueError, match="context is 7"):
        GPT(small())(torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(ValueError, match="without the last dimension"):
        token_loss(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.long))


def test_token_loss_ignores_minus_100_and_sums():
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [0, 4, 3]])
    mean, total = token_loss(logits, targets), token_loss(logits, targets, reduction="sum")
    assert torch.allclose(mean, total / 5)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda channels: nn.GroupNorm(4, channels)])
def test_resnet_shapes_and_norm(norm):
    model = SmallResNet(num_classes=7, width=8, norm=norm)
    images, _ = digits(flat=False)
    assert model(images[:4]).shape == (4, 7)
    assert model(torch.ones(2, 1, 32, 32)).shape == (2, 7)
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()) == (norm is nn.BatchNorm2d)


def test_resnet_parameter_count():
    width, classes = 16, 10
    block = lambda a, b, shortcut: 9 * a * b + 9 * b * b + 4 * b + shortcut * a * b  # noqa: E731
    expected = 9 * width + 2 * width + block(16, 16, 0) + block(16, 32, 1) + block(32, 64, 1) + 64 * classes + classes
    assert count(SmallResNet()) == expected
    with pytest.raises(ValueError, match="expected 1 or more"):
        SmallResNet(width=0)


def test_resnet_50_and_152_have_the_known_numbers_of_parameters():
    """As torchvision's documentation prints them."""
    assert (resnet_parameters(), resnet_parameters((3, 8, 36, 3))) == (25_557_032, 60_192_808)
