"""The known mistakes of lab 03, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # 03.start
    "buffers_forgotten": Hint(
        en="the parameters arrive, the buffers do not: BatchNorm's statistics are in model.buffers()",
        zh="参数同步了，buffer 没有：BatchNorm 的统计量在 model.buffers() 里",
    ),
    "averaged_at_start": Hint(
        en="this is the mean over the ranks; the task wants rank 0's values: broadcast from rank 0",
        zh="这是各 rank 的平均；本题要的是 rank 0 的值：从 rank 0 广播",
    ),
    "own_root": Hint(
        en="src names the one rank that sends, and every rank has to name the same: src=0, not its own rank",
        zh="src 是发送方，所有 rank 必须填同一个：src=0，而不是各自的 rank",
    ),
    # values, several tasks
    "not_finished": Hint(
        en="finish() returns while an all-reduce is still on its way: keep the works that async_op=True returns, and "
        "call wait() on each",
        zh="finish() 返回时 all-reduce 还没完成：保存 async_op=True 返回的 work，并对每个调用 wait()",
    ),
    "works_kept": Hint(
        en="the first step is right and the second is not: does the list still hold the works of the first step?",
        zh="第一步正确，第二步不对：列表里是不是还留着第一步的 work？",
    ),
    "parameter_for_gradient": Hint(
        en="the hook is given the parameter, not its gradient: all-reduce parameter.grad",
        zh="hook 收到的是参数而不是梯度：应对 parameter.grad 做 all-reduce",
    ),
    "averages_weights": Hint(
        en="the weights were averaged; DDP averages gradients: all-reduce parameter.grad",
        zh="被平均的是权重；DDP 平均的是梯度：应对 parameter.grad 做 all-reduce",
    ),
    "divided_twice": Hint(
        en="this is a mean divided by the world size once more: divide before or after the all-reduce, or use "
        "ReduceOp.AVG, but only one of them",
        zh="平均值又多除了一次 world size：求和前除、求和后除、ReduceOp.AVG，三者只用一个",
    ),
    "sum_for_mean": Hint(
        en="this looks like a sum where a mean is meant: all_reduce adds; what has to divide it?",
        zh="看起来求的是和而不是平均：all_reduce 默认求和，还要除以什么？",
    ),
    "wrong_divisor": Hint(
        en="the sum is divided by a fixed number: ask dist.get_world_size()",
        zh="除数是写死的：应该用 dist.get_world_size()",
    ),
    # 03.buckets
    "last_bucket_dropped": Hint(
        en="the last bucket is never sent: after the loop something may be left that is not full",
        zh="最后一个桶没有发送：循环结束后可能还剩一个没装满的桶",
    ),
    "elements_for_bytes": Hint(
        en="the buckets are as if cap counted elements: it counts bytes, numel() * element_size() for a tensor",
        zh="这样的桶像是把 cap 当成元素个数：cap 是字节数，一个张量占 numel() * element_size() 字节",
    ),
    "closes_early": Hint(
        en="these buckets never exceed cap; in this task, as in torch, the tensor that crosses cap is still in",
        zh="这样的桶从不超过 cap；本题与 torch 一样，达到或越过 cap 的那个张量属于这个桶",
    ),
    "one_message_each": Hint(
        en="each gradient travels alone, so each pays the latency: collect until cap bytes are there",
        zh="每个梯度单独发送，每次都要付延迟：先攒够 cap 字节",
    ),
    "one_bucket": Hint(
        en="everything travels in one message, so nothing could start early: close a bucket at cap bytes",
        zh="所有梯度一次发完，就无法提前开始：到 cap 字节就应封桶",
    ),
    "own_gradient": Hint(
        en="each rank still has its own gradient: is the mean written back, in place?",
        zh="各 rank 仍是自己的梯度：平均值有没有原地写回？",
    ),
    # 03.overlap
    "after_backward": Hint(
        en="nothing is sent until backward is over: start the all-reduce inside the hook, wait for it in finish()",
        zh="反向传播结束后才开始发送：应在 hook 里启动 all-reduce，在 finish() 里等待",
    ),
    "waits_in_hook": Hint(
        en="a hook waits, so backward stands still (the check lets rank 1 start its backward when rank 0 has ended its "
        "own): use async_op=True, and wait in finish()",
        zh="hook 里在等待，反向传播因此停住（检查时 rank 1 要等 rank 0 的反向传播结束才开始）："
        "用 async_op=True，在 finish() 里等",
    ),
    # 03.sampler
    "not_shuffled": Hint(
        en="every rank's indices are in order: shuffle all of them, with torch.randperm and a torch.Generator",
        zh="每个 rank 的下标都是顺序的：用 torch.Generator 和 torch.randperm 打乱全部下标",
    ),
    "epoch_ignored": Hint(
        en="every epoch has the same order: set_epoch has to change the seed of the shuffle, for example seed + epoch",
        zh="每个 epoch 的顺序都一样：set_epoch 要改变打乱的种子，例如 seed + epoch",
    ),
    "ranks_shuffle_apart": Hint(
        en="the ranks shuffle differently, so their shares overlap: one generator, seeded alike on every rank",
        zh="各 rank 打乱的方式不同，份额互相重叠：用同一种子的 torch.Generator",
    ),
    "tail_dropped": Hint(
        en="the tail is left out: round up and repeat a few examples, so that each is seen",
        zh="尾部样本被丢掉了：向上取整，重复几个样本，使每个样本都被看到",
    ),
    "unequal_shares": Hint(
        en="the shares differ in length: a rank with one batch more waits for ever in its all-reduce; repeat a few",
        zh="各 rank 份额长度不同：多一个 batch 的 rank 会一直等 all-reduce；应补齐几个样本",
    ),
    # 03.accumulate
    "reduction_after_step": Hint(
        en="the gradients are right but the weights moved by this rank's own: average before optimizer.step()",
        zh="梯度是对的，但权重按本 rank 自己的梯度更新了：先平均，再 optimizer.step()",
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
        en="a mean of means: an example of a short micro-batch counts too much; add sums, divide once by all examples",
        zh="这是平均的平均：短 micro-batch 的样本权重偏大；先求和，再除以全部样本数",
    ),
    "rank_mean": Hint(
        en="each rank divides by its own examples, and the ranks have different numbers: divide by those of all ranks",
        zh="各 rank 除以自己的样本数，而各 rank 样本数不同：应除以所有 rank 的样本总数",
    ),
    "divided_by_ranks_too": Hint(
        en="divided by all examples and by the world size too: the number of all examples is enough",
        zh="除以了样本总数，又除以了 world size：只除以样本总数就够了",
    ),
    "sends_every_micro_batch": Hint(
        en="the gradients travel after each micro-batch: let .grad add up, and average once, before the step",
        zh="每个 micro-batch 后都在通信：先在 .grad 里累加，更新前只平均一次",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
