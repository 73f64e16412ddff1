"""The operations between the projections of attention: torch's flash kernel, torch's fallback, and spelled out.

B sequences of T tokens, H heads of d columns. Query, key and value come as views (B, H, T, d) of (B, T, h).
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.predict.memory.replay import Made, Op


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the operations. dtype: of weights and activations. The rest as in `Plan`, for the whole model."""

    batch: int
    tokens: int
    num_layers: int
    num_heads: int
    hidden: int
    vocab: int
    dtype: str = "float32"
    dropout: bool = False
    attention: str = "flash"
    recompute: str = "none"
    tied: bool = True
    tp: int = 1
    sequence_parallel: bool = False

    @property
    def stream(self) -> tuple[int, ...]:
        """Between the parts of a block: with sequence parallelism the rank's tokens only."""
        return (self.batch, self.tokens // (self.tp if self.sequence_parallel else 1), self.hidden)

    @property
    def whole(self) -> tuple[int, ...]:
        return (self.batch, self.tokens, self.hidden)

    @property
    def own_heads(self) -> int:
        return self.num_heads // self.tp

    @property
    def heads(self) -> tuple[int, ...]:
        return (self.batch, self.own_heads, self.tokens, self.hidden // self.num_heads)

    @property
    def maps(self) -> tuple[int, ...]:
        return (self.batch, self.own_heads, self.tokens, self.tokens)

    @property
    def builds_maps(self) -> bool:
        """Whether (B, H, T, T) exist: torch's attention on a CPU builds them, too, as soon as there is dropout."""
        return self.attention == "materialized" or self.dropout

    @property
    def batched_copies(self) -> bool:
        """Whether bmm needs a copy of (B, H, T, d) that came from (B, T, H, d)."""
        return self.batch > 1 and self.own_heads > 1


def attention_ops(shape: Shape, module: str, heads: tuple[str, ...], mixed: str) -> list[Op]:
    """From query, key and value (`heads`, which the caller holds) to `mixed`."""
    if not shape.builds_maps:
        return [_flash(shape, module, heads, mixed)]
    spelled_out = shape.attention == "materialized" or shape.tp > 1  # under tp masks come from outside the kernel
    return (_spelled_out if spelled_out else _fallback)(shape, module, heads, mixed)


def _flash(shape: Shape, module: str, heads: tuple[str, ...], mixed: str) -> Op:
    """Keeps its inputs, its output and the fp32 log-sum-exp of each row; backward builds the maps piece by piece."""
    out, rows = Made(mixed, shape.heads, shape.dtype), Made(f"logsumexp of {mixed}", shape.heads[:3], "float32")
    return Op(module=module, makes=(out, rows), reads=heads, keeps=(*heads, out.name, rows.name))


def _spelled_out(shape: Shape, module: str, heads: tuple[str, ...], mixed: str) -> list[Op]:
    """`materialized_attention` of the course's GPT, line by line; its masked scores live until it returns."""
    query, key, value = (_batched(shape, name) for name in heads)
    raw, scaled, masked = _maps(shape, mixed, shape.dtype, "scores", "scaled scores", "masked scores")
    out, weights, mask = (
        Made(mixed, shape.heads, shape.dtype),
        _weights(shape, mixed),
        Made("", shape.maps[2:], shape.dtype),
    )
    return [
        *_copies(shape, module, heads[:2], shape.dtype),
        _product(module, raw, (query, key), drops=_without(heads, (query, key))),
        Op(module=module, makes=(scaled,), reads=(raw.name,), drops=(raw.name,)),
        Op(
            module=module,
            makes=(masked,),
            reads=(scaled.name,),
            drops=(scaled.name,),
            passes=True,
            moment=mask.num_bytes,
        ),
        *_softmax(shape, module, mixed, masked.name, shape.dtype),
        *_copies(shape, module, heads[2:], shape.dtype),
        _product(module, out, (weights, value), drops=(*_without(heads, (value,)), masked.name, weights)),
        *_relaid(shape, module, mixed),
    ]


def _fallback(shape: Shape, module: str, heads: tuple[str, ...], mixed: str) -> list[Op]:
    """torch's own without a flash kernel: query and key are scaled each, and 16-bit numbers become fp32 first."""
    wide = heads if shape.dtype == "float32" else tuple(f"fp32 {name}" for name in heads)
    casts = [_same_shape(shape, module, old, new) for old, new in zip(heads, wide, strict=True) if old != new]
    scaled = tuple(f"scaled {name}" for name in heads[:2])
    query, key, value = (_batched(shape, name) for name in (*scaled, wide[2]))
    mask = Made(f"causal mask of {mixed}", shape.maps[2:], "float32")
    raw, masked = _maps(shape, mixed, "float32", "scores", "masked scores")
    (returned,) = _maps(shape, mixed, shape.dtype, "returned weights")  # which nobody asked for
    out = Made(mixed if wide == heads else f"fp32 {mixed}", shape.heads, "float32")
    ops = [
        *casts,
        _same_shape(shape, module, wide[0], scaled[0]),
        Op(module=module, makes=(mask,), moment=shape.tokens**2),
        _same_shape(shape, module, wide[1], scaled[1]),
        *_copies(shape, module, scaled, "float32"),
        _product(module, raw, (query, key), drops=(*_without(scaled, (query, key)), scaled[1])),
        Op(module=module, makes=(masked,), reads=(raw.name,), drops=(raw.name,), passes=True),
        *_softmax(shape, module, mixed, masked.name, "float32", drops=(masked.name,)),
        *([] if wide == heads else [Op(module=module, makes=(returned,))]),
        *_copies(shape, module, wide[2:], "float32"),
        _product(module, out, (_weights(shape, mixed), value), drops=_without(wide, (value,))),
        *_relaid(shape, module, out.name),
    ]
    extra = () if wide == heads else (*wide, returned.name)
    end = (scaled[0], mask.name, _weights(shape, mixed), *extra)
    if out.name == mixed:
        return [*ops, Op(module=module, drops=end)]
    return [*ops, _same_shape(shape, module, out.name, mixed, shape.dtype, drops=(out.name, *end))]


def _relaid(shape: Shape, module: str, mixed: str) -> list[Op]:
    """Backward's bmm asks for a copy of the gradient (B, H, T, d) that comes as a view of (B, T, h)."""
    return [Op(module=module, of=mixed, reads=(mixed,))] if shape.batched_copies else []


def _maps(shape: Shape, mixed: str, dtype: str, *names: str) -> list[Made]:
    return [Made(f"{name} of {mixed}", shape.maps, dtype) for name in names]


def _weights(shape: Shape, mixed: str) -> str:
    return f"dropped softmax of {mixed}" if shape.dropout else f"softmax of {mixed}"


def _batched(shape: Shape, name: str) -> str:
    """What bmm reads: a copy where (B, H) cannot be one dimension of the view."""
    return f"copy of {name}" if shape.batched_copies else name


def _without(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """The others that are not among the names: what this function made itself."""
    return tuple(name for name in others if name not in names)


def _same_shape(
    shape: Shape, module: str, source: str, result: str, dtype: str = "float32", drops: tuple[str, ...] = (),
    passes: bool = False,
) -> Op:  # fmt: skip
    made = Made(result, shape.heads, dtype)
    return Op(module=module, makes=(made,), reads=(source,), drops=drops, passes=passes)


def _copies(shape: Shape, module: str, names: tuple[str, ...], dtype: str) -> list[Op]:
    pairs = [(name, _batched(shape, name)) for name in names]
    return [_same_shape(shape, module, old, new, dtype, passes=True) for old, new in pairs if old != new]


def _product(module: str, out: Made, factors: tuple[str, str], drops: tuple[str, ...]) -> Op:
    return Op(module=module, makes=(out,), reads=factors, keeps=factors, drops=drops)


def _softmax(shape: Shape, module: str, mixed: str, scores: str, dtype: str, drops: tuple[str, ...] = ()) -> list[Op]:
    """Keeps its output. Dropout keeps its mask and hands on a third map."""
    softmax, dropped, mask = _maps(shape, mixed, dtype, "softmax", "dropped softmax", "dropout mask of softmax")
    ops = [Op(module=module, makes=(softmax,), reads=(scores,), keeps=(softmax.name,), drops=drops)]
    if shape.dropout and shape.tp > 1:
        whole = (shape.batch, shape.num_heads, *shape.maps[2:])
        return ops + part_dropout(shape, module, softmax.name, dropped.name, whole, shape.maps)
    if shape.dropout:
        ops.append(
            Op(module=module, makes=(dropped, mask), reads=(softmax.name,), keeps=(mask.name,), drops=(softmax.name,))
        )
    return ops


def part_dropout(
    shape: Shape, module: str, source: str, result: str, whole: tuple[int, ...], part: tuple[int, ...]
) -> list[Op]:
    """Dropout of a part of a tensor that the ranks share, with its part of the whole mask."""
    mask = Made(f"dropout mask of {result}", part, shape.dtype)
    drawn, out = Made(f"whole {mask.name}", whole, shape.dtype), Made(result, part, shape.dtype)
    return [
        Op(module=module, makes=(drawn,), moment=2 * drawn.num_bytes),  # the ones, and the noise
        Op(module=module, makes=(mask,), drops=(drawn.name,)),
        Op(module=module, makes=(out,), reads=(source,), keeps=(mask.name,), drops=(mask.name, source)),
    ]
