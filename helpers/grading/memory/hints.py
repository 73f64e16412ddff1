"""The known mistakes of lab 05, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # 05.count
    "only_matrices": Hint(
        en="only the matrices of the layers and the tables are counted: biases and norms are parameters too",
        zh="只数了各层的矩阵和两张表：偏置和归一化层也是参数",
    ),
    "biases_forgotten": Hint(
        en="the biases of the matrices are missing: 3h, h, 4h and h a layer",
        zh="漏了矩阵的偏置：每层 3h、h、4h、h",
    ),
    "norms_forgotten": Hint(
        en="a LayerNorm has a weight and a bias, 2h: two in each layer, and one before the head",
        zh="LayerNorm 有 weight 和 bias，共 2h：每层两个，输出头之前还有一个",
    ),
    "last_norm_forgotten": Hint(
        en="2h are missing: one more LayerNorm stands between the last layer and the head",
        zh="少了 2h：最后一层和输出头之间还有一个 LayerNorm",
    ),
    "projection_forgotten": Hint(
        en="attention has four matrices of h x h: query, key, value, and the projection of the heads' outputs",
        zh="注意力有四个 h x h 的矩阵：query、key、value，以及把各头输出合起来的投影",
    ),
    "feed_forward_narrow": Hint(
        en="the feed-forward part goes from h to 4h and back: two matrices of 4h x h, not of h x h",
        zh="前馈部分从 h 到 4h 再回到 h：是两个 4h x h 的矩阵，不是 h x h",
    ),
    "positions_forgotten": Hint(
        en="GPT-2 learns its positions: a second table, with seq rows of h numbers",
        zh="GPT-2 的位置编码是学出来的：还有一张 seq 行、每行 h 个数的表",
    ),
    "head_counted_twice": Hint(
        en="the head is counted beside the token table; here they are one tensor (tied embeddings)",
        zh="输出头和词表嵌入被各数了一次；这里它们是同一个张量（权重共享）",
    ),
    # 05.states
    "master_forgotten": Hint(
        en="the fp32 master copy of the weights is missing: 4 of the 12 bytes, and the optimizer holds it",
        zh="漏了 fp32 主权重：12 字节中的 4 字节，由优化器持有",
    ),
    "one_moment": Hint(
        en="Adam keeps two numbers a parameter: a moving mean of the gradient and one of its square",
        zh="Adam 每个参数保存两个数：梯度的滑动平均和梯度平方的滑动平均",
    ),
    "master_in_fp32_too": Hint(
        en="with fp32 weights no master copy is needed: they are it; Adam's two moments alone make 8 bytes",
        zh="权重本身就是 fp32 时不需要主权重；只有 Adam 的两个动量，8 字节",
    ),
    "moments_in_16_bit": Hint(
        en="Adam's moments stay in fp32 in mixed precision too, and the master copy as well: 4 + 4 + 4",
        zh="混合精度下 Adam 的动量仍是 fp32，主权重也是：4 + 4 + 4",
    ),
    "gradients_as_parameters": Hint(
        en="gradients need not have the dtype of the parameters: 'mixed_fp32_grads' adds them up in fp32, 4 bytes",
        zh="梯度的类型不一定和参数相同：'mixed_fp32_grads' 用 fp32 累加梯度，4 字节",
    ),
    "gradients_always_fp32": Hint(
        en="'mixed' keeps its gradients in 16 bits, 2 bytes; only 'mixed_fp32_grads' has 4",
        zh="'mixed' 的梯度是 16 位，2 字节；只有 'mixed_fp32_grads' 才是 4",
    ),
    "optimizer_not_sharded": Hint(
        en="every rank holds the whole optimizer state here: sharding it is what ZeRO-1 does, and 2 and 3 keep that",
        zh="这里每个 rank 都有完整的优化器状态：切分它正是 ZeRO-1 做的事，ZeRO-2、3 也保留",
    ),
    "stage_1_shards_gradients": Hint(
        en="ZeRO-1 shards the optimizer's state alone; gradients are whole until stage 2",
        zh="ZeRO-1 只切分优化器状态；到 ZeRO-2 才切分梯度",
    ),
    "stage_2_shards_parameters": Hint(
        en="ZeRO-2 still has all parameters on each rank; they are sharded in stage 3",
        zh="ZeRO-2 的每个 rank 仍有完整参数；到 ZeRO-3 才切分参数",
    ),
    "share_rounded_down": Hint(
        en="the shares do not hold all parameters: round up, the largest share decides what fits",
        zh="这样切分装不下全部参数：应向上取整，最大的一份决定能否放下",
    ),
    "gigabytes": Hint(
        en="these are gigabytes; the task asks for bytes, so that GB (1e9) and GiB (2**30) cannot be confused",
        zh="这是 GB；题目要的是字节数，以免混淆 GB（1e9）和 GiB（2**30）",
    ),
    "gibibytes": Hint(
        en="these are GiB (2**30 bytes, 7 % more than a GB); the task asks for bytes",
        zh="这是 GiB（2**30 字节，比 GB 大 7 %）；题目要的是字节数",
    ),
    # 05.activations
    "map_forgotten": Hint(
        en="the attention maps are missing: a matrix of s x s for every head and sequence, kept in 5 bytes a number",
        zh="漏了注意力矩阵：每个头、每条序列都有一个 s x s 的矩阵，每个位置共 5 字节",
    ),
    "heads_forgotten": Hint(
        en="each head has an attention map of its own: a maps of s x s for each sequence, not one",
        zh="每个头都有自己的注意力矩阵：每条序列 a 个 s x s，不是一个",
    ),
    "masks_of_two_bytes": Hint(
        en="a dropout mask says yes or no: 1 byte a number, not 2",
        zh="dropout 掩码只记是或否：每个数 1 字节，不是 2",
    ),
    "masks_left_out": Hint(
        en="the dropout masks are missing: two of s b h, and one of a s s b on the maps, 1 byte a number",
        zh="漏了 dropout 掩码：两个 s b h，注意力矩阵上还有一个 a s s b，每个数 1 字节",
    ),
    "four_byte_numbers": Hint(
        en="these are fp32 activations; the task counts 16-bit ones, 2 bytes a number",
        zh="这是 fp32 激活；题目按 16 位计，每个数 2 字节",
    ),
    "feed_forward_not_wide": Hint(
        en="the feed-forward part is 4h wide inside: what GELU reads and what it writes are 8 s b h bytes each",
        zh="前馈部分内部有 4h 列：GELU 的输入和输出各 8 s b h 字节",
    ),
    "flash_keeps_maps": Hint(
        en="flash attention never stores the maps: backward computes them again, piece by piece, so 5 a s s b is gone",
        zh="flash attention 不保存注意力矩阵：反向时分块重算，所以没有 5 a s s b",
    ),
    "tp_ignored": Hint(
        en="tensor parallelism splits what is inside attention and feed-forward, 24 of the 34, and the maps, by t",
        zh="张量并行把注意力和前馈内部的激活（34 中的 24）以及注意力矩阵按 t 切分",
    ),
    "tp_splits_all": Hint(
        en="without sequence parallelism 10 of the 34 stay whole on every rank: norms, the inputs of both parts, masks",
        zh="没有序列并行时，34 中有 10 在每个 rank 上都是完整的：归一化、两部分的输入、掩码",
    ),
    "maps_not_split": Hint(
        en="each rank has a / t heads, so the attention maps are divided by t as well",
        zh="每个 rank 只有 a / t 个头，所以注意力矩阵也要除以 t",
    ),
    "sequence_parallel_ignored": Hint(
        en="with sequence parallelism the 10 s b h that tensor parallelism left whole are split along s, by t",
        zh="有序列并行时，张量并行留下的 10 s b h 也沿 s 方向按 t 切分",
    ),
    # 05.accumulate
    "everything_at_once": Hint(
        en="all micro-batches go through the model as one: right, and as large as the batch that did not fit",
        zh="所有 micro-batch 合成一个送进模型：结果对，但和原来放不下的 batch 一样大",
    ),
    "steps_every_micro_batch": Hint(
        en="the optimizer steps after each micro-batch: the next gradient is then that of other weights; step once",
        zh="每个 micro-batch 之后都更新了权重：后面的梯度就是另一组权重的了；只更新一次",
    ),
    "last_micro_batch_only": Hint(
        en="only the last micro-batch counts: zero_grad() belongs before the loop",
        zh="只有最后一个 micro-batch 起作用：zero_grad() 应放在循环之前",
    ),
    "not_cleared": Hint(
        en="the gradients of the step before are still in there: zero_grad() first",
        zh="里面还有上一步的梯度：先 zero_grad()",
    ),
    "mean_of_means": Hint(
        en="a mean of means: a token in a part with few tokens counts too much; add up sums, divide once by all tokens",
        zh="这是平均的平均：token 少的那部分里每个 token 权重偏大；先求和，再除以全部 token 数",
    ),
    "padding_counted": Hint(
        en="divided by all places, padding too: only targets other than -100 count",
        zh="除数里算进了填充位置：只有 target 不是 -100 的才算",
    ),
    "not_divided": Hint(
        en="a sum where a mean is meant: divide by the number of all tokens that count",
        zh="这是总和，不是平均：要除以全部有效 token 数",
    ),
    "divided_by_micro_batches_too": Hint(
        en="divided by all tokens and by the number of micro-batches too: the tokens are enough",
        zh="除以了全部 token 数，又除以了 micro-batch 的个数：前者就够了",
    ),
    "keeps_every_graph": Hint(
        en="each micro-batch's graph lives until one backward at the end: run backward in the loop, it frees the graph",
        zh="每个 micro-batch 的计算图都活到最后才反向：在循环里 backward，用完即释放",
    ),
    "graph_lives_on": Hint(
        en="the last graph still lives when the next forward begins: no retain_graph, and keep no loss with its graph",
        zh="下一个前向开始时，上一个计算图还在：不要 retain_graph，也不要保存带图的 loss",
    ),
    # 05.checkpoint
    "detached_output": Hint(
        en="backward stops at what comes back: no .item(), no .detach() and no torch.no_grad() around what you return",
        zh="反向到返回值就断了：返回值不要用 .item()、.detach()，也不要放在 torch.no_grad() 里",
    ),
    "without_grad_mode": Hint(
        en="inside an autograd.Function gradients are off, in backward too: recompute under torch.enable_grad()",
        zh="autograd.Function 内部不记录梯度，backward 里也一样：在 torch.enable_grad() 下重算",
    ),
    "not_detached": Hint(
        en="the recomputed graph is tied to the one before: compute with x.detach().requires_grad_(), return its .grad",
        zh="重算的图还连着前面的图：用 x.detach().requires_grad_() 重算，再返回它的 .grad",
    ),
    "gradients_miscounted": Hint(
        en="backward returns a gradient for each argument of forward, in their order: None for what has none",
        zh="backward 要按顺序给 forward 的每个参数返回一个梯度：不是浮点张量的返回 None",
    ),
    "integers_want_no_gradient": Hint(
        en="positions are whole numbers and have no gradient: only x gets requires_grad_()",
        zh="positions 是整数，没有梯度：只对 x 调用 requires_grad_()",
    ),
    "never_recomputes": Hint(
        en="the function runs once, so nothing is recomputed: its second run belongs into backward",
        zh="函数只运行了一次，没有重算：第二次运行应在 backward 里",
    ),
    "recomputed_twice": Hint(
        en="the function runs three times: once forward, once in backward is enough; one backward gives all gradients",
        zh="函数运行了三次：前向一次、反向一次就够了；一次 backward 就能得到所有梯度",
    ),
    "reseeded": Hint(
        en="a seed of your own changes the first pass: save the generator's state before it, and set nothing",
        zh="自己设种子会改变第一次前向：应在它之前保存生成器状态，什么都不要设",
    ),
    "other_mask": Hint(
        en="save torch.get_rng_state() before the first pass, and set it before the second: then dropout is the same",
        zh="第一次前向之前保存 torch.get_rng_state()，第二次之前恢复它，dropout 就相同",
    ),
    "incoming_gradient_ignored": Hint(
        en="backward goes on from the gradient that came in: torch.autograd.backward(output, gradient), not from ones",
        zh="反向要从传进来的梯度继续：torch.autograd.backward(output, gradient)，而不是全 1",
    ),
    "parameters_get_nothing": Hint(
        en="torch.autograd.grad(output, x) gives x's gradient alone; torch.autograd.backward reaches parameters too",
        zh="torch.autograd.grad(output, x) 只给 x 的梯度；torch.autograd.backward 才会到参数",
    ),
    "generator_moved": Hint(
        en="recomputing leaves the generator elsewhere, so later masks repeat: use torch.random.fork_rng(devices=[])",
        zh="重算之后生成器停在了别处，后面的掩码会重复：用 torch.random.fork_rng(devices=[])",
    ),
    "keeps_activations": Hint(
        en="right, and nothing is saved: the first pass must leave no graph behind, only its inputs and the RNG state",
        zh="结果对，但没有省内存：第一次前向不能留下计算图，只留输入和 RNG 状态",
    ),
    # 05.chunked
    "last_chunk_dropped": Hint(
        en="the last, shorter chunk is left out: len(x) // chunk rounds down",
        zh="最后较短的一块被漏掉了：len(x) // chunk 是向下取整",
    ),
    "chunk_of_padding": Hint(
        en="a chunk of padding alone has no mean, it is 0 / 0: add up sums, reduction='sum'",
        zh="全是填充的一块没有平均值，是 0 / 0：用 reduction='sum' 求和",
    ),
    "weight_gets_nothing": Hint(
        en="weight gets no gradient: every chunk contributes one, and they add up",
        zh="weight 没有梯度：每一块都有贡献，要累加",
    ),
    "weight_gradient_of_one_chunk": Hint(
        en="the gradient of weight is that of the last chunk alone: add up what each chunk gives",
        zh="weight 的梯度只剩最后一块的：要把每一块的加起来",
    ),
    "incoming_gradient_forgotten": Hint(
        en="backward must multiply by the gradient that comes in: the loss may be scaled, or be one of several",
        zh="backward 要乘以传进来的梯度：损失可能被缩放，也可能只是其中一项",
    ),
    "logits_at_once": Hint(
        en="the logits of all tokens exist at once: multiply one chunk of x by weight.T at a time",
        zh="全部 token 的 logits 同时存在：每次只用一块 x 乘以 weight.T",
    ),
    "logits_kept": Hint(
        en="made in chunks, but autograd keeps every chunk for backward: use each up in forward, or compute it again",
        zh="虽然分块计算，但 autograd 为反向保留了每一块：在前向里就用掉，或反向时重算",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
