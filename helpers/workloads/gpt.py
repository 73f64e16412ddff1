"""Provides GPT, a small decoder-only transformer, and its loss. It knows nothing of parallelism.

The strategies of the course (DDP, tensor parallelism and so on) wrap this model or replace some of its layers.

Legend: B = batch, T = tokens in a sequence (at most s = context), h = hidden, H = heads, d = h / H, V = vocabulary,
l = layers.

Parameters, with biases and learned positions (GPT-2; Radford et al. 2019, section 2.3):
    per block  12 h^2 + 13 h  query, key, value, projection: 4 h^2 + 4 h; up and down: 8 h^2 + 5 h; two norms: 4 h
    tied       l (12 h^2 + 13 h) + (V + s) h + 2 h        the last 2 h are the final norm
    untied     V h more, because the head has a matrix of its own
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from helpers.specs import ModelSpec

RESIDUAL = ("projection.weight", "down.weight")  # the matrices whose output is added to the residual stream
FIRST_STD = 0.02  # the standard deviation with which GPT-2 initialises a matrix


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape of a GPT. `tied` means that the head and the token embedding are one matrix, which is so by default.

    attention: "flash" calls torch's scaled_dot_product_attention. "materialized" computes the same step by step, so the
    attention maps (B, H, T, T) exist in memory. On the CPU torch's function builds the maps too if there is dropout.
    num_kv_heads: the number of heads for keys and values. With fewer than num_heads, neighbouring query heads share one
    (grouped-query attention; Ainslie et al. 2023). None means as many as there are query heads.
    Raises ValueError where a number is below 1, the heads do not divide the hidden size, the key and value heads do not
    divide the heads, dropout is outside [0, 1), or the attention is unknown.
    """

    vocab_size: int
    context: int
    num_layers: int
    num_heads: int
    hidden: int
    dropout: float = 0.0
    tied: bool = True
    attention: str = "flash"
    num_kv_heads: int | None = None

    def __post_init__(self):
        for name in ("vocab_size", "context", "num_layers", "num_heads", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"GPTConfig({name}={getattr(self, name)}): expected 1 or more")
        if self.hidden % self.num_heads:
            raise ValueError(
                f"GPTConfig(hidden={self.hidden}, num_heads={self.num_heads}): the heads share the hidden size, "
                f"so choose a hidden size that {self.num_heads} divides"
            )
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise ValueError(
                f"GPTConfig(num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}): groups of query heads share "
                f"a key and value head, so choose a number that divides {self.num_heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"GPTConfig(dropout={self.dropout}): expected 0 or more and below 1")
        if self.attention not in ("flash", "materialized"):
            raise ValueError(f"GPTConfig(attention={self.attention!r}): expected 'flash' or 'materialized'")

    @classmethod
    def tiny(cls, **changes) -> "GPTConfig":
        """28,672 parameters: a step takes milliseconds, so tests and proofs use it."""
        return cls(**{**dict(vocab_size=68, context=32, num_layers=2, num_heads=4, hidden=32), **changes})

    @classmethod
    def ten_million(cls, **changes) -> "GPTConfig":
        """10,698,240 parameters: large enough that its gradients need several buckets of 25 MB."""
        return cls(**{**dict(vocab_size=68, context=64, num_layers=6, num_heads=6, hidden=384), **changes})

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def spec(self) -> ModelSpec:
        """The same shape as a ModelSpec, which the predictors take."""
        return ModelSpec(
            num_layers=self.num_layers, hidden=self.hidden, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads,
            vocab=self.vocab_size, seq=self.context, tied_embeddings=self.tied,
        )  # fmt: skip

    def first_std(self, name: str) -> float:
        """The standard deviation with which GPT-2 initialises a matrix of this name.

        It is 0.02, divided by sqrt(2 l) for the matrices whose output is added to the residual stream, because 2 l of
        them are added up there.
        """
        return FIRST_STD / math.sqrt(2 * self.num_layers) if name.endswith(RESIDUAL) else FIRST_STD

    @property
    def num_parameters(self) -> int:
        """The exact count of parameters; a tied matrix counts once. The formula is at the top of this file.

        With grouped queries, key and value lose (h - k) (h + 1) parameters each, where k is the width of their heads.
        """
        h, embeddings = self.hidden, self.vocab_size + self.context
        head = 0 if self.tied else self.vocab_size * h
        grouped = 2 * (h - self.kv_heads * (h // self.num_heads)) * (h + 1)  # what key and value lose
        return self.num_layers * (12 * h * h + 13 * h - grouped) + embeddings * h + 2 * h + head


class Attention(nn.Module):
    """Causal self-attention: (B, T, h) to (B, T, h).

    Query, key and value are three layers, and the number of heads is read from the shape of their outputs. So a
    tensor-parallel layer, which has only some of the heads, can replace one of them without any other change.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.head_size = config.hidden // config.num_heads
        self.dropout = config.dropout
        self.materialized = config.attention == "materialized"
        # A parallel strategy may set `core` to its own function for softmax(QK^T) V, which gets keys and values with
        # their own number of heads; None: as `attention` says.
        self.core = None
        kv_hidden = config.kv_heads * self.head_size
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, kv_hidden)  # its bias adds one constant per row, which softmax removes
        self.value = nn.Linear(config.hidden, kv_hidden)
        self.projection = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        return self.projection(self.attend(query, key, value).transpose(1, 2).flatten(2))  # (B, T, h)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The attention of heads (B, H, T, d), without any weights: the part that selective recomputation runs twice.

        Keys and values may have fewer heads than queries. Returns (B, H, T, d).
        """
        core = self.core or (materialized_attention if self.materialized else fused_attention)
        return core(query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # (B, H, T, d)


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values for each of `num_heads` query heads: (B, kv heads, T, d) to (B, H, T, d).

    With grouped queries, neighbouring query heads get the same key and value head.
    """
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def fused_attention(query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    """torch's scaled_dot_product_attention, whose options it takes; keys and values may have fewer heads."""
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    return F.scaled_dot_product_attention(query, key, value, **options)


def materialized_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    dropout: Callable[[Tensor, float], Tensor] = F.dropout,
) -> Tensor:
    """Computes what torch's scaled_dot_product_attention computes, step by step. All tensors are (B, H, T, d).

    Keys and values may have fewer heads than queries.
    dropout: the function that drops attention weights; it is called with the weights and dropout_p.
    Autograd saves the output of softmax and, with dropout, the mask and the result of dropout: (B, H, T, T) each.
    """
    num_tokens = query.shape[-2]
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (B, H, T, T)
    if is_causal:  # a sum saves no tensor for backward, while masked_fill would save its mask
        scores = scores + scores.new_full((num_tokens, num_tokens), -math.inf).triu(1)
    weights = dropout(F.softmax(scores, dim=-1), dropout_p)  # (B, H, T, T), rows sum to 1 before dropout
    return weights @ value


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them: (B, T, h) to (B, T, 4 h) to (B, T, h)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """One transformer layer, with a norm before the attention and before the feed-forward: (B, T, h) to (B, T, h)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GPT(nn.Module):
    """Embeddings, transformer blocks, a final norm and a head. Forward: token ids (B, T) int64 to logits (B, T, V).

    positions: (T) or (B, T) int64, where the tokens stand in their documents; None means 0, 1, 2 and so on.
    Raises ValueError for a sequence longer than the context.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden)
        self.position_embedding = nn.Embedding(config.context, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.token_embedding.weight
        self._initialise()

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.head(self.features(tokens, positions))  # (B, T, V)

    def features(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """The input of the head, (B, T, h), for a loss that computes the logits itself, some tokens at a time."""
        num_tokens = tokens.shape[1]
        if positions is None and num_tokens > self.config.context:
            raise ValueError(
                f"GPT got {num_tokens} tokens a sequence, its context is {self.config.context}: "
                "cut the sequence, or build the model with a longer context"
            )
        if positions is None:
            positions = torch.arange(num_tokens, device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))  # (B, T, h)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def _initialise(self):
        """Initialises as GPT-2 does: matrices are normal with `first_std`, biases are zero."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=self.config.first_std(name))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def token_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross entropy in nats per token. logits (B, T, V), targets (B, T) int64; a target of -100 does not count.

    reduction="sum" gives the sum over tokens, which gradient accumulation divides once by the number of all tokens.
    Raises ValueError where the shapes do not fit.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"token_loss got logits {tuple(logits.shape)} and targets {tuple(targets.shape)}: "
            "targets must have the logits' shape without the last dimension"
        )
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)  # ignores -100 by default


def train_alone(model: nn.Module, optimizer: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[float]:
    """Trains on one process in plain PyTorch and yields the loss of each step.

    Training with any parallel strategy on several ranks must give the same losses.
    """
    for tokens, targets in batches:
        optimizer.zero_grad()
        loss = token_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        yield loss.item()
