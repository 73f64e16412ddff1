"""The known mistakes of lab 08, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # 08.shard, and wherever something is cut
    "padded_where_even": Hint(
        en="right, but not where the division leaves no rest: n - len % n is n there, and (-len) % n is 0",
        zh="能整除时就不对了：这时 n - len % n 等于 n，而 (-len) % n 等于 0",
    ),
    "shards_differ_in_length": Hint(
        en="shards differ in length, and reduce-scatter and all-gather want equal ones: first put zeros at the end",
        zh="各分片长度不同，而 reduce-scatter 和 all-gather 要求等长：先在末尾补 0",
    ),
    "tail_dropped": Hint(
        en="the last numbers are in no shard: round the length of a shard up, not down",
        zh="最后几个数不在任何分片里：分片长度要向上取整，不是向下",
    ),
    "each_tensor_cut": Hint(
        en="each tensor is cut by itself: here all tensors form one line first, and only its end gets zeros",
        zh="这里对每个张量单独切了：应先把所有张量接成一条，只在末尾补 0",
    ),
    "zeros_in_front": Hint(
        en="the zeros stand in front, so every number moves: put them behind the last one",
        zh="0 补在了前面，所有数的位置都变了：应补在最后",
    ),
    "every_other_number": Hint(
        en="every n-th number, as a sampler deals out examples: a shard is one run of neighbours, for one message",
        zh="隔 n 个取一个，像采样器分样本那样：分片是连续的一段，才能作为一条消息传输",
    ),
    # 08.stage1
    "gather_forgotten": Hint(
        en="only the own shard is updated: after the step the others' shards must come by all-gather",
        zh="只有自己的分片更新了：step 之后要用 all-gather 取回其他 rank 的分片",
    ),
    "not_copied_back": Hint(
        en="the model does not move: what was gathered must be copied into the parameters themselves, in place",
        zh="模型没有变：收集到的数要原地复制到 parameters 里",
    ),
    "optimizer_made_anew": Hint(
        en="the momentum is lost at every step: make the optimizer once, in __init__",
        zh="每一步都丢了动量：optimizer 只应在 __init__ 里创建一次",
    ),
    "gradient_added_up": Hint(
        en="the shard's gradient still holds those of the steps before: assign it, or clear it first",
        zh="分片的梯度里还留着前几步的：应直接赋值，或先清空",
    ),
    "no_optimizer": Hint(
        en="make_optimizer is not called, or its step() is not: give it the own shard in a list, and step it",
        zh="没有调用 make_optimizer 或它的 step()：把自己的分片放进列表交给它，再调用 step()",
    ),
    "no_grad_forgotten": Hint(
        en="a parameter is changed where autograd watches: put the update under torch.no_grad()",
        zh="在 autograd 记录时修改了 parameter：更新要放在 torch.no_grad() 下",
    ),
    # 08.stage2
    "after_backward": Hint(
        en="all gradients are there before the first one leaves: send in the hook, while backward goes on",
        zh="所有梯度都算完才开始发送：应在 hook 里、反向进行时就发送",
    ),
    "gradient_kept": Hint(
        en="the whole gradient stays after its shard is there: set .grad to None in the hook, or stage 2 saves nothing",
        zh="得到分片后完整梯度还留着：在 hook 里把 .grad 设为 None，否则 stage 2 什么也没省",
    ),
    "whole_buffer_kept": Hint(
        en="something as large as the whole gradients is kept: a shard that is a view keeps all of its buffer alive",
        zh="还留着和完整梯度一样大的东西：如果分片是 view，整个缓冲区都不会释放",
    ),
    "order_of_arrival": Hint(
        en="the shards stand in the order in which gradients came, last layer first: return them as in parameters",
        zh="分片按梯度到达的顺序排列（最后一层在前）：应按 parameters 的顺序返回",
    ),
    "nothing_returned": Hint(
        en="finish() returns nothing: it hands out the list of shards",
        zh="finish() 没有返回值：它应返回分片的列表",
    ),
    "last_micro_batch_only": Hint(
        en="the second micro-batch replaces the first: until finish() is called, shards add up",
        zh="第二个 micro-batch 覆盖了第一个：在调用 finish() 之前，分片要累加",
    ),
    "step_before_kept": Hint(
        en="the shards of the step before are still in there: finish() hands them out and begins anew",
        zh="上一步的分片还在里面：finish() 交出分片后要重新开始",
    ),
    # 08.stage3
    "zeros_kept": Hint(
        en="what was gathered has the zeros at its end: take as many numbers as the shape has, then view",
        zh="收集到的末尾带着补的 0：先取 shape 所需的个数，再 view",
    ),
    "gradient_of_another_shape": Hint(
        en="the gradient of the shard has its shape: reduce-scatter the padded gradient and return the own part",
        zh="分片的梯度必须和分片形状相同：把补齐后的梯度 reduce-scatter，返回自己那一份",
    ),
    "gradients_miscounted": Hint(
        en="backward returns one value for each argument of forward, None for what has no gradient, such as the shape",
        zh="backward 要为 forward 的每个参数返回一个值，没有梯度的（如 shape）返回 None",
    ),
    "input_gets_nothing": Hint(
        en="x gets no gradient, so the layers before learn nothing: it is the gradient of y times the weight",
        zh="x 没有梯度，前面的层就学不到东西：它等于 y 的梯度乘以权重",
    ),
    "shard_gets_nothing": Hint(
        en="the shard gets no gradient: messages are no part of autograd, so a Function has to send it back",
        zh="分片没有梯度：通信不在 autograd 里，要在自己写的 Function 中把梯度传回去",
    ),
    "weight_kept": Hint(
        en="the whole weight survives the forward pass: keep x and the shard only, and gather again in backward",
        zh="完整权重在前向之后还在，什么也没省：只保存 x 和分片，反向时再 all-gather 一次",
    ),
    "gradient_overwritten": Hint(
        en="the second micro-batch replaces the first one's gradient: return it from backward, and autograd adds it up",
        zh="第二个 micro-batch 覆盖了第一个的梯度：应从 backward 返回，由 autograd 累加",
    ),
    # of several stages
    "all_reduced": Hint(
        en="an all-reduce moves twice as much and gives all of it to everyone: reduce-scatter brings the own part only",
        zh="all-reduce 的传输量是两倍，而且每个 rank 都拿到全部：reduce-scatter 只给自己那一份",
    ),
    "sum_for_mean": Hint(
        en="a sum where a mean is meant: divide by the number of ranks",
        zh="应为平均值，这里是求和：要除以 rank 的个数",
    ),
    "divided_twice": Hint(
        en="divided twice by the number of ranks: ReduceOp.AVG divides already",
        zh="除了两次 rank 数：ReduceOp.AVG 已经除过了",
    ),
    "own_gradient": Hint(
        en="this is the part of the own gradient: what the other ranks computed is missing",
        zh="这是自己梯度的一部分：没有加上其他 rank 算出的梯度",
    ),
    "wrong_place": Hint(
        en="the right length, but it begins in the wrong place: rank r begins at r times the length of a shard",
        zh="长度对，但起点不对：rank r 从 r 乘分片长度处开始",
    ),
    "not_padded": Hint(
        en="the parts of a reduce-scatter must be equally long: put zeros behind the line until the ranks divide it",
        zh="reduce-scatter 的各份必须等长：先在末尾补 0，直到能被 rank 数整除",
    ),
    "view_of_the_whole": Hint(
        en="a slice is a view, and keeps the whole line in memory: clone() it, so that the rest can be freed",
        zh="切片只是 view，会让整条数据一直占着内存：用 clone() 复制出来，其余才能释放",
    ),
    # 08.resume
    "old_boundaries": Hint(
        en="the shards are still those of the old ranks: join all of them, and cut the line again for the new ones",
        zh="分片还是旧 rank 的边界：要先把所有分片接起来，再按新的 rank 数切",
    ),
    "sorted_by_name": Hint(
        en="the files are joined as a folder lists them, rank 10 before rank 2: sort by the number",
        zh="文件按目录列出的顺序拼接，rank 10 排在 rank 2 前面：要按数字排序",
    ),
    "old_zeros_kept": Hint(
        en="the zeros of the old padding are still in the line: keep num_elements numbers, then cut",
        zh="旧的补 0 还留在里面：先只保留 num_elements 个数，再切",
    ),
    "step_lost": Hint(
        en="the step begins anew: Adam corrects its moments by the step, so the first updates would be far too large",
        zh="step 从头开始了：Adam 按 step 修正动量，最初几次更新会大得多",
    ),
    "steps_added": Hint(
        en="the step is no shard: each rank saved the same number, so take it from one of them",
        zh="step 不是分片：每个 rank 存的是同一个数，取其中一个就行",
    ),
    "moments_lost": Hint(
        en="the optimizer forgets what it learned: exp_avg and exp_avg_sq are cut again as the parameters are",
        zh="optimizer 忘了之前的状态：exp_avg 和 exp_avg_sq 要和 parameters 一样重新切",
    ),
    "whole_state": Hint(
        en="this is the whole state on every rank, which is what ZeRO avoids: only the own shard",
        zh="每个 rank 都持有全部状态，这正是 ZeRO 要避免的：只保留自己的分片",
    ),
    # 08.cost
    "one_stage_off": Hint(
        en="one stage off: stage 1 cuts what the optimizer keeps, 2 also the gradients, 3 also the weights, 0 nothing",
        zh="差了一个 stage：1 切 optimizer 状态，2 再切梯度，3 再切权重，0 什么也不切",
    ),
    "stage_alone": Hint(
        en="each stage cuts what the one before cuts, too: 2 is 1 and the gradients, 3 is 2 and the weights",
        zh="每个 stage 都包含前一个：2 是 1 加梯度，3 是 2 加权重",
    ),
    "master_forgotten": Hint(
        en="8 bytes for the optimizer are Adam's two moments: the fp32 copy of the weights is 4 more",
        zh="optimizer 的 8 字节只是 Adam 的两个动量：还有 4 字节的 fp32 权重副本",
    ),
    "all_in_fp32": Hint(
        en="weights and gradients have 2 bytes each here: only the optimizer's three numbers have 4",
        zh="这里权重和梯度各 2 字节：只有 optimizer 的三个数各 4 字节",
    ),
    "everything_cut": Hint(
        en="this is stage 3's memory at every stage: below it, something is still whole on every rank",
        zh="每个 stage 都给出了 stage 3 的内存：低于 3 时，有些东西在每个 rank 上还是完整的",
    ),
    "ring_share_forgotten": Hint(
        en="in a ring a rank keeps its own part: it sends (N - 1) / N of what is reduced or gathered",
        zh="在环里每个 rank 留下自己那一份：发送量是总量的 (N - 1) / N",
    ),
    "numbers_for_bytes": Hint(
        en="these are numbers, not bytes: each has 2",
        zh="这是数的个数，不是字节数：每个数 2 字节",
    ),
    "micro_batches_forgotten": Hint(
        en="one micro-batch counts: from stage 2 on whole gradients cannot wait, so each micro-batch sends its own",
        zh="只算了一个 micro-batch：stage 2 起不保留完整梯度，每个 micro-batch 都要发送",
    ),
    "sent_every_micro_batch": Hint(
        en="too often: stages 0 and 1 add gradients up and send once a step, and updated weights are gathered once",
        zh="次数多了：stage 0 和 1 累加梯度，每步只发一次；更新后的权重也只收集一次",
    ),
    "not_gathered_for_backward": Hint(
        en="stage 3 freed its weights after forward: each micro-batch gathers twice and reduce-scatters once",
        zh="stage 3 在前向后释放了权重：每个 micro-batch 收集两次，reduce-scatter 一次",
    ),
    "gathered_once_a_step": Hint(
        en="stage 3 keeps no weights between micro-batches: each gathers them for forward and for backward",
        zh="stage 3 在 micro-batch 之间不保留权重：每个 micro-batch 的前向和反向都要收集",
    ),
    "gather_not_counted": Hint(
        en="the all-gather of the updated weights is missing: in stages 1 and 2 each step ends with it",
        zh="少了更新后权重的 all-gather：stage 1 和 2 的每一步都以它结束",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
