"""The known mistakes of lab 07, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # all of them
    "operators_swapped": Hint(
        en="this is the other operator: one is the identity forward and adds backward, its twin the other way round",
        zh="这是另一个算子：一个前向恒等、反向求和，另一个正好相反",
    ),
    "unknown_to_autograd": Hint(
        en="autograd does not know dist.all_reduce and goes past it: say what backward does, in an autograd.Function",
        zh="autograd 不认识 dist.all_reduce，会直接略过：用 torch.autograd.Function 写明反向做什么",
    ),
    "no_gradient": Hint(
        en="backward has nothing to start from: work on the tensor that came in, not on .detach() or .data of it",
        zh="反向无从开始：要用传入的张量本身计算，不要用它的 .detach() 或 .data",
    ),
    # 07.identity_all_reduce, 07.all_reduce_identity
    "gathers_the_parts": Hint(
        en="the parts of all ranks stand side by side: they are parts of a sum, so add them with all_reduce",
        zh="各 rank 的部分被拼在了一起：它们是同一个和的各项，应该用 all_reduce 相加",
    ),
    "gradient_changed": Hint(
        en="all_reduce overwrote the gradient that came in: its neighbours use the same tensor, so clone it first",
        zh="all_reduce 覆盖了传进来的梯度：旁边的分支用的是同一个张量，先 clone",
    ),
    "x_changed": Hint(
        en="x itself became the sum: all_reduce works in place, and whoever holds x sees it change; clone it first",
        zh="x 自己变成了和：all_reduce 是原地操作，别处用到 x 的代码会看到它变了；先 clone",
    ),
    # 07.column, 07.row
    "cut_across": Hint(
        en="the weight is cut along the other dimension: nn.Linear computes x @ weight.T, so a column of A is a row of "
        "weight",
        zh="weight 切错了维度：nn.Linear 计算 x @ weight.T，A 的一列是 weight 的一行",
    ),
    "bias_not_cut": Hint(
        en="the bias is whole, the output is not: it has one number for each output, so cut it as the outputs are",
        zh="bias 没有切，而输出切了：每个输出对应一个 bias，要和输出一样切",
    ),
    "input_cut_again": Hint(
        en="x is cut once more: what comes in is this rank's part already, as a column-parallel layer gives it",
        zh="x 又切了一次：传入的已经是本 rank 的部分，就像列并行层的输出",
    ),
    "bias_cut": Hint(
        en="the bias is cut, the output is not: here each rank has all outputs, and needs all of the bias",
        zh="bias 被切了，而输出没有切：行并行层的每个 rank 都有全部输出，需要完整的 bias",
    ),
    "gathers_the_input": Hint(
        en="it gathers x: cut weight's columns instead, and what each rank computes is a part of the sum",
        zh="它收集了完整的 x：应该切 weight 的列，这样每个 rank 算出的是和的一项",
    ),
    "gathers_the_output": Hint(
        en="it gathers the output: leave it cut, the next layer wants it like that",
        zh="它收集了完整的输出：让输出保持切开，下一层正需要这样",
    ),
    "bias_forgotten": Hint(
        en="the bias is missing in the output",
        zh="输出里没有加 bias",
    ),
    "bias_on_every_rank": Hint(
        en="the bias is added once on every rank, and the all-reduce adds all of them: add it once, after the sum",
        zh="每个 rank 都加了一次 bias，all-reduce 又把它们全部相加：求和之后只加一次",
    ),
    "bias_shared_out": Hint(
        en="each rank adds a share of the bias: the output is right, the bias or its gradient is not: add all "
        "of it after the sum",
        zh="每个 rank 只加了 bias 的一份：输出对了，但它在各 rank 上的值或梯度不对；求和之后再加完整的 bias",
    ),
    "bias_on_one_rank": Hint(
        en="only one rank uses its bias: the others get no gradient and go stale: let all add it after the sum",
        zh="只有一个 rank 用了 bias：其他 rank 得不到梯度，副本会过时；每个 rank 都在求和之后加",
    ),
    "not_parameters": Hint(
        en="an optimizer finds no layer.weight and layer.bias: only what is wrapped in nn.Parameter is a parameter",
        zh="layer.weight 和 layer.bias 不是参数，优化器找不到它们：用 nn.Parameter 包起来",
    ),
    "same_part_everywhere": Hint(
        en="every rank has the part of rank 0: the cut depends on dist.get_rank()",
        zh="每个 rank 拿到的都是 rank 0 的部分：切法要取决于 dist.get_rank()",
    ),
    "dealt_out": Hint(
        en="dealt out like cards, every n-th: take a block of neighbours, so that all parts in order are the whole",
        zh="像发牌一样隔 n 个取一个：每个 rank 应取连续的一块，按顺序拼起来就是整体",
    ),
    "not_cut": Hint(
        en="the whole weight is still a parameter on every rank: memory is saved only if the layer keeps its own part",
        zh="每个 rank 上仍保存着完整的 weight：只保留自己的部分才能省内存",
    ),
    "view_of_the_whole": Hint(
        en="the part is a view, and keeps all of the memory alive: clone() it; contiguous() copies only if it must",
        zh="切出来的只是视图，整块内存都还占着：要 clone()（contiguous() 只在必要时才复制）",
    ),
    # most of them
    "forward_not_reduced": Hint(
        en="this is the rank's own part of the sum: add the parts of all ranks in forward",
        zh="这只是本 rank 的那一项：前向时要把所有 rank 的相加",
    ),
    "forward_reduced": Hint(
        en="forward adds over the ranks, and nothing is to be added there: here the ranks meet in backward",
        zh="前向做了求和，而这里前向不需要求和：各 rank 在反向时才相加",
    ),
    "backward_not_reduced": Hint(
        en="this is the rank's own part of the gradient: x went to the columns of every rank, so add what comes back",
        zh="这只是本 rank 的那部分梯度：x 进入了每个 rank 的列，反向时要把各 rank 的梯度相加",
    ),
    "averaged": Hint(
        en="divided by the number of ranks: they hold parts of one sum, not copies with other data, so add only",
        zh="除以了 rank 数：各 rank 持有的是同一个和的各项，不是不同数据的副本，只需相加",
    ),
    "backward_reduced": Hint(
        en="backward adds over the ranks once more: the gradient of the sum is whole on every rank, so pass it on",
        zh="反向又求了一次和：求和之后每个 rank 已经有完整的梯度，原样传下去即可",
    ),
    "gradients_reduced": Hint(
        en="the gradients of the parameters are reduced over the ranks, as in DDP: here they share data, and each has "
        "the gradient that it needs",
        zh="参数的梯度在 rank 之间做了归约，像 DDP 一样：这里各 rank 的数据相同，各自的梯度已经是所需的",
    ),
    # 07.heads
    "one_block": Hint(
        en="one block of the fused weight: rank 0 gets queries only; split it into queries, keys and values first",
        zh="把融合的 weight 直接切成块：rank 0 只分到 query；应先拆成 query、key、value",
    ),
    "thirds": Hint(
        en="split into thirds: with fewer key-value heads than query heads, keys and values have fewer rows",
        zh="按三等分拆开了：key-value 头比 query 头少时，key 和 value 比 query 小",
    ),
    "cut_across_heads": Hint(
        en="a head is cut: where there are fewer than ranks, a rank takes all of the one that its queries use",
        zh="切断了一个头：key-value 头比 rank 少时，每个 rank 取它的 query 所用的那个完整的头",
    ),
    "wrong_kv_head": Hint(
        en="the key-value head of other queries: neighbouring ranks share one, so rank 1 of 4 with 2 heads has head 0",
        zh="取到的 key-value 头属于别的 query：相邻的 rank 共用一个头，4 个 rank、2 个头时 rank 1 用头 0",
    ),
    "all_kv_heads": Hint(
        en="keys and values of all heads: a rank needs those that its own queries use",
        zh="包含了所有头的 key 和 value：每个 rank 只需要自己的 query 用到的",
    ),
    "head_by_head": Hint(
        en="the right rows, head by head: within a rank too, all queries come first, then all keys, then all values",
        zh="行选对了，但按头交错排列：在一个 rank 内也是先所有 query，再所有 key，再所有 value",
    ),
    "heads_dealt_out": Hint(
        en="heads dealt out like cards: a rank has neighbouring heads, so that parts in order are the whole",
        zh="像发牌一样分头：每个 rank 应取相邻的头，按顺序拼起来就是整体",
    ),
    "values_before_keys": Hint(
        en="values stand before keys: the order is queries, keys, values",
        zh="value 排在了 key 前面：顺序是 query、key、value",
    ),
    "same_heads_everywhere": Hint(
        en="every rank has the heads of rank 0: the cut depends on dist.get_rank()",
        zh="每个 rank 拿到的都是 rank 0 的头：切法要取决于 dist.get_rank()",
    ),
    # 07.cross_entropy
    "target_not_shifted": Hint(
        en="targets count over the whole vocabulary, the columns of logits from 0: subtract where yours begin",
        zh="targets 是整个词表里的编号，而每个 rank 的 logits 列从 0 开始：要减去自己的起点",
    ),
    "gathers_the_logits": Hint(
        en="whole logits travel: they are the largest tensor of the step; three numbers a token are enough",
        zh="传输了整个 logits，这是一步里最大的张量；每个 token 三个数就够了",
    ),
    "max_not_reduced": Hint(
        en="each rank subtracts its own maximum: sums add up only if all ranks subtract the same; reduce it with MAX",
        zh="每个 rank 减去的是自己的最大值：减去同一个数，和才能相加；用 MAX 归约",
    ),
    "sum_not_reduced": Hint(
        en="the sum of exp covers this rank's part of the vocabulary only: softmax is over all of it",
        zh="exp 的和只包括本 rank 的那部分词表：softmax 要对整个词表求和",
    ),
    "target_not_reduced": Hint(
        en="the target's logit is known on one rank only: the others put 0 there, and a sum tells everybody",
        zh="target 的 logit 只有一个 rank 知道：其他 rank 填 0，求和之后大家就都有了",
    ),
    "target_not_masked": Hint(
        en="a rank without the target takes a column of its own for it: it has to add 0, in forward and in backward",
        zh="不持有 target 的 rank 取了自己的某一列：前向和反向都应为 0",
    ),
    "padding_counted": Hint(
        en="padding counts: a target of -100 adds nothing to the sum, and is not in the number by which it is divided",
        zh="把填充算进去了：target 为 -100 的既不计入总和，也不计入除数",
    ),
    "not_divided": Hint(
        en="a sum over tokens where a mean is meant: divide by the number of targets that are not -100",
        zh="这是各 token 的总和，不是平均：除以不是 -100 的 target 数",
    ),
    "loss_reduced": Hint(
        en="the losses of all ranks are added: each has the whole loss already, since they share the tokens",
        zh="把各 rank 的损失相加了：token 是相同的，每个 rank 已经有完整的损失",
    ),
    "incoming_gradient_forgotten": Hint(
        en="backward forgets the gradient that comes in: multiply by it, a loss may be scaled",
        zh="反向忘了乘以传进来的梯度：损失可能被缩放过",
    ),
    "max_follows_gradient": Hint(
        en="gradient flows through the maximum, on the rank that has it alone: take it from logits.detach()",
        zh="梯度流过了最大值，而且只在持有它的 rank 上：从 logits.detach() 求最大值",
    ),
    "out_of_range": Hint(
        en="exp leaves the range of floats: subtract each token's own maximum, over all ranks, before exp",
        zh="exp 超出了浮点数的范围：在 exp 之前减去每个 token 在所有 rank 上的最大值",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
