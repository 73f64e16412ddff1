"""Run what the tensor-split and ZeRO explorers show on live ranks, and write down every number that the ranks had.

Writes two files in helpers/predict/by_hand. tensor_split.json: the layers of helpers/parallel/tensor_parallel on 2 and
on 4 ranks, with and without sequence parallelism, compared with the same layers of plain torch in one process.
zero_steps.json: one step of ZeRO stage 3 (helpers/parallel/zero) on 3 ranks. Some seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from helpers.parallel.tensor_parallel import (  # noqa: E402
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    conjugate,
    layers,
    vocab_parallel_cross_entropy,
)
from helpers.parallel.zero import Zero3  # noqa: E402
from helpers.predict.by_hand import tensor_split, zero_steps  # noqa: E402
from helpers.predict.by_hand.tensor_split import CUTS, EQUATIONS, FORWARD, INPUTS, RANKS  # noqa: E402
from helpers.ranks import Ranks  # noqa: E402

X = torch.tensor([[1, 2, 0], [0, 1, -1], [2, 0, 1], [-1, 1, 1]]).double()  # 4 tokens of 3 numbers
A = torch.tensor([[1, 0, -1, 2], [0, 1, 1, -1], [2, -1, 0, 1]]).double()  # 3 x 4
B = torch.tensor([[1, -1, 0], [0, 2, 1], [1, 0, -1], [-1, 1, 2]]).double()  # 4 x 3
G = torch.tensor([[1, 2, 0, 1], [0, 1, 1, -1], [2, 0, 1, 0], [-1, 1, 0, 2]]).double()  # the input of "rows": B alone
ARRIVES = torch.tensor([[1, 0, -1], [0, 1, 1], [-1, 2, 0], [1, 1, 0]]).double()  # the gradient of a layer's output
ARRIVES_WIDE = torch.tensor([[1, 0, -1, 1], [0, 1, 1, 0], [-1, 2, 0, 1], [1, 1, 0, -1]]).double()  # with 4 columns
QUERY = torch.tensor([[1, 0, -1, 0], [0, 1, 0, 1], [1, -1, 0, 0]]).double()  # 3 x 4 heads
KEY = torch.tensor([[0, 1, 1, 0], [1, 0, -1, 1], [0, 1, 0, -1]]).double()
VALUE = torch.tensor([[2, 0, 1, -1], [0, 1, 0, 2], [-1, 1, 2, 0]]).double()
TABLE = torch.tensor(  # 8 vocabulary entries
    [[1, 0, 2], [0, 1, -1], [2, 1, 0], [-1, 0, 1], [1, 1, 1], [0, -2, 1], [1, -1, 0], [0, 2, 1]]
).double()
TOKEN_IDS = torch.tensor([1, 6, 3, 4])  # of the 4 tokens; for the head, their target ids


# -- tensor parallelism ----------------------------------------------------------------------------------------------
class OneProcess:
    """Makes the layers of one process, in plain torch. A matrix is given as it is drawn: inputs times outputs."""

    def column(self, *matrices: Tensor) -> list[nn.Module]:
        """Layers that read one input."""
        return [_linear(one) for one in matrices]

    def row(self, matrix: Tensor) -> nn.Module:
        return _linear(matrix)

    def embedding(self, table: Tensor) -> nn.Module:
        return nn.Embedding.from_pretrained(table, freeze=False)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets)

    def tokens(self, full: Tensor) -> Tensor:
        """The tokens (rows) of an input or a gradient that are here."""
        return full

    def columns(self, full: Tensor) -> Tensor:
        """The columns of an input or a gradient that are here."""
        return full


class OnRanks(OneProcess):
    """Makes this rank's shards of the same layers, for a group of all ranks."""

    def __init__(self, sequence_parallel: bool):
        self.dim = 0 if sequence_parallel else None  # of the tokens

    def column(self, *matrices: Tensor) -> list[nn.Module]:
        sharded = [ColumnParallelLinear(_linear(one), sequence_dim=self.dim) for one in matrices]
        layers.SharedInput(sharded)  # one message for all of them
        return sharded

    def row(self, matrix: Tensor) -> nn.Module:
        return RowParallelLinear(_linear(matrix), sequence_dim=self.dim)

    def embedding(self, table: Tensor) -> nn.Module:
        return VocabParallelEmbedding(super().embedding(table), sequence_dim=self.dim)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy(logits, targets)

    def tokens(self, full: Tensor) -> Tensor:
        return full if self.dim is None else full.chunk(dist.get_world_size(), 0)[dist.get_rank()]

    def columns(self, full: Tensor) -> Tensor:
        return full.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def _linear(matrix: Tensor) -> nn.Linear:
    linear = nn.Linear(*matrix.shape, bias=False)
    linear.weight = nn.Parameter(matrix.T.clone())
    return linear


# Each function below runs the forward of one layer. It returns the tensors by their names in EQUATIONS, the input first
# and the output last, and the modules by the names of their weights.
Run = tuple[dict[str, Tensor], dict[str, nn.Module]]


def mlp(on: OneProcess) -> Run:
    (a,), b, x = on.column(A), on.row(B), _leaf(on.tokens(X))
    u = a(x)
    g = u.relu()
    return {"X": x, "U": u, "G": g, "Z": b(g)}, {"A": a, "B": b}


def columns(on: OneProcess) -> Run:
    (a,), x = on.column(A), _leaf(on.tokens(X))
    return {"X": x, "Y": a(x)}, {"A": a}


def rows(on: OneProcess) -> Run:
    b, g = on.row(B), _leaf(on.columns(G))
    return {"G": g, "Z": b(g)}, {"B": b}


def attention(on: OneProcess) -> Run:
    (query, key, value), output, x = on.column(QUERY, KEY, VALUE), on.row(B), _leaf(on.tokens(X))
    q, k, v = query(x), key(x), value(x)  # (tokens, heads), because a head has one column
    heads = (one.T.unsqueeze(-1) for one in (q, k, v))  # (heads, tokens, 1)
    o = F.scaled_dot_product_attention(*heads, is_causal=True, scale=1.0).squeeze(-1).T
    return {"X": x, "Q": q, "K": k, "V": v, "O": o, "Z": output(o)}, {"Wq": query, "Wk": key, "Wv": value, "Wo": output}


def embedding(on: OneProcess) -> Run:
    table, one_hot = on.embedding(TABLE), F.one_hot(TOKEN_IDS, len(TABLE)).double()
    return {"I": on.columns(one_hot), "X": table(TOKEN_IDS)}, {"E": table}


def head(on: OneProcess) -> Run:
    (w,), x = on.column(TABLE.T), _leaf(on.tokens(X))
    return {"X": x, "L": w(x)}, {"W": w}


LAYERS = {layer.__name__: layer for layer in (mlp, columns, rows, attention, embedding, head)}


def _leaf(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


def run_layer(cut: str, on: OneProcess) -> dict[str, Tensor]:
    """Run a layer forward and backward. Returns every matrix that is here by its name in EQUATIONS."""
    made, modules = LAYERS[cut](on)
    *_, output = made.values()
    for tensor in made.values():
        if tensor.requires_grad:
            tensor.retain_grad()
    if cut == "head":
        on.loss(output, TOKEN_IDS).backward()
    else:
        output.backward(on.columns(ARRIVES_WIDE) if cut == "columns" else on.tokens(ARRIVES))
    found = made | {f"d{name}": tensor.grad for name, tensor in made.items() if tensor.grad is not None}
    for name, module in modules.items():
        # torch stores the weight of a linear layer as outputs times inputs
        weight, gradient = module.weight, module.weight.grad
        found[name], found[f"d{name}"] = (weight, gradient) if cut == "embedding" else (weight.T, gradient.T)
    return {name: tensor.detach() for name, tensor in found.items()}


def token_losses(logits: Tensor, on: OneProcess) -> Tensor:
    """The loss of each token by itself, a column."""
    return torch.stack([on.loss(logits[[i]], TOKEN_IDS[[i]]) for i in range(len(TOKEN_IDS))]).unsqueeze(1)


@contextmanager
def payloads() -> Iterator[list[list[Tensor]]]:
    """For each collective that adds or compares: a copy of what this rank gave, then the tensor itself after the call.

    The all-reduces of the loss are in place, so there the second one is the result.
    """
    seen: list[list[Tensor]] = []

    def watched(function):
        def call(tensor: Tensor, *args, **kwargs):
            seen.append([tensor.detach().clone()])
            returned = function(tensor, *args, **kwargs)
            seen[-1].append(tensor.detach())
            return returned

        return call

    places = [(module, f"start_{op}") for module in (conjugate, layers) for op in ("all_reduce", "reduce_scatter")]
    with ExitStack() as stack:
        for module, name in (*places, (layers, "_all_reduce")):
            stack.enter_context(patch.object(module, name, watched(getattr(module, name))))
        yield seen


def on_this_rank(cut: str, sequence_parallel: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run a layer on a rank. Returns its matrices, and those that it gave to a collective, by name."""
    on = OnRanks(sequence_parallel)
    with payloads() as seen:
        found = run_layer(cut, on)
    partial = dict(zip(joined_names(cut), seen, strict=True))
    if cut == "head":
        partial["s t"] = [pair.T for pair in partial["s t"]]  # the loss sends s and t as two rows
        found |= {name: partial[name][1] for name in ("m", "s t")} | {"loss": token_losses(found["L"], on)}
    return found, {name: given for name, (given, _) in partial.items()}


def sharings(equation: str) -> dict[str, str]:
    """How the ranks share each matrix that an equation shows, without those that it shows transposed."""
    pairs = (word.replace("_", " ").split(":") for word in equation.split() if ":" in word)
    return {name: sharing for name, sharing in pairs if not name.endswith("ᵀ")}


def joined_names(cut: str) -> list[str]:
    """The matrices that a collective adds or compares, in the order in which the ranks send them."""
    passes = [sharings(EQUATIONS[cut].get(name, "")) for name in (FORWARD, INPUTS)]
    return [name for each in passes for name, sharing in each.items() if sharing in ("sum", "total", "max")]


def joined(parts: list[Tensor], sharing: str, sequence_parallel: bool) -> Tensor:
    """A full matrix, from what the ranks have of it."""
    if sharing == "columns":
        return torch.cat(parts, 1)
    if sharing == "rows" or (sequence_parallel and sharing in ("tokens", "kept", "sum")):
        return torch.cat(parts)
    return parts[0]


def record_layer(cut: str, num_ranks: int, sequence_parallel: bool, ranks: Ranks) -> tuple[dict, dict, dict]:
    """Run a layer on ranks: its full matrices, each rank's partial ones, and by pass the difference to one process."""
    by_rank, partial = zip(*ranks[:num_ranks].run(on_this_rank, cut, sequence_parallel), strict=True)
    single = run_layer(cut, OneProcess())
    if cut == "head":
        single["loss"] = token_losses(single["L"], OneProcess())
    full, differences = {}, {}
    for name, equation in EQUATIONS[cut].items():
        here = {
            matrix: joined([found[matrix] for found in by_rank], sharing, sequence_parallel)
            for matrix, sharing in sharings(equation).items()
        }
        known = here.keys() & single.keys()  # one process has no m, s and t
        differences[name] = max((here[matrix] - single[matrix]).abs().max().item() for matrix in known)
        full |= here
    return full, {name: [given[name] for given in partial] for name in partial[0]}, differences


def full_numbers(full: dict[str, Tensor]) -> dict[str, list]:
    """Matrices as they are written down."""
    return {name: _rows(one) for name, one in full.items()}


def partial_numbers(partial: dict[str, list[Tensor]]) -> dict[str, list]:
    """Each rank's partial matrices as they are written down."""
    return {name: [_rows(one) for one in parts] for name, parts in partial.items()}


def _rows(matrix: Tensor) -> list[list[float]]:
    """Numbers with six decimals, and whole ones as integers."""
    rounded = [[round(number, 6) for number in row] for row in matrix.tolist()]
    return [[int(number) if number == int(number) else number for number in row] for row in rounded]


def record_tensor_split(ranks: Ranks) -> dict[str, dict]:
    """Every layer on every number of ranks, as `tensor_split.recorded` describes it."""
    recordings = {cut: {"full": {}, "partial": {}, "differences": {}} for cut in CUTS}
    for cut, recording in recordings.items():
        for num_ranks in RANKS:
            full, partial, plain = record_layer(cut, num_ranks, False, ranks)
            _, _, sequence = record_layer(cut, num_ranks, True, ranks)
            recording["full"] = full_numbers(full)
            recording["partial"][num_ranks] = partial_numbers(partial)
            recording["differences"][num_ranks] = {name: [plain[name], sequence[name]] for name in plain}
    return recordings


# -- ZeRO ------------------------------------------------------------------------------------------------------------
WEIGHTS = torch.tensor([[1, 0, 2], [1, -1, 0], [0, 1, 1]]).double()  # of layers a, b and c
BATCHES = torch.tensor([[1, 0, 2], [0, 1, -1], [2, 1, 0]]).double()  # one batch per rank
# Chosen so that the means of the gradients are whole numbers.
TARGETS = torch.tensor([[4, -2, -1], [-2, 2, 1], [-1, 4, -3]]).double()


class Circular(nn.Module):
    """A layer of 3 weights: output i is the sum over j of weight[j] * h[i - j]."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, h: Tensor) -> Tensor:
        return sum(self.weight[j] * h.roll(j) for j in range(len(h)))


def zero_on_this_rank() -> dict[str, dict[str, Tensor]]:
    """A training step on a rank: the gradients of its batch, and what it owns of means, new weights and moments."""
    model = Zero3(nn.Sequential(*map(Circular, WEIGHTS)))  # each layer is a unit, so rank r owns element r of it
    layers, pieces = dict(zip(zero_steps.LAYERS, model.module, strict=True)), list(model.parameters())
    optimizer = torch.optim.Adam(pieces, lr=0.1)  # a hundred times torch's default, so that one step can be seen
    terms = dict.fromkeys(layers)  # backward fills it from the last layer to the first
    for name, layer in layers.items():
        layer.weight.register_hook(lambda gradient, name=name: terms.update({name: gradient.clone()}))
    rank = dist.get_rank()
    ((model(BATCHES[rank]) - TARGETS[rank]).square().sum() / 2).backward()
    optimizer.step()
    owned = dict(zip(layers, pieces, strict=True))
    means = {name: piece.grad for name, piece in owned.items()}
    moments = {name: optimizer.state[piece]["exp_avg"] for name, piece in owned.items()}
    return {"terms": terms, "means": means, "updated": owned, "moments": moments}


def record_zero_steps(ranks: Ranks) -> dict[str, dict | list]:
    """A training step, as `zero_steps.recorded` describes it."""
    results = ranks[: zero_steps.RANKS].run(zero_on_this_rank)
    found = {"weights": _vectors(WEIGHTS), "terms": [_vectors(result["terms"].values()) for result in results]}
    for kind in ("means", "updated", "moments"):
        by_layer = zip(*(result[kind].values() for result in results), strict=True)
        found[kind] = _vectors(torch.cat(parts).detach() for parts in by_layer)
    return found


def _vectors(layers: Iterable[Tensor]) -> dict[str, list[float]]:
    return dict(zip(zero_steps.LAYERS, _rows(torch.stack(list(layers))), strict=True))


def main() -> None:
    with Ranks(max(RANKS)) as ranks:
        recordings = {tensor_split.RECORDED: record_tensor_split(ranks), zero_steps.RECORDED: record_zero_steps(ranks)}
    for path, recording in recordings.items():
        path.write_text(json.dumps(recording, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
