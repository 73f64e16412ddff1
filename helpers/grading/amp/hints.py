"""The known mistakes of lab 04, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # 04.scale
    "cast_first": Hint(
        en="the values were cast to fp16 before they were scaled, so small ones were rounded or gone: scale in fp32, "
        "then cast",
        zh="先转成 fp16 再乘 scale，小的值已被舍入或变成 0：应在 fp32 里乘 scale，再转换",
    ),
    "sign_forgotten": Hint(
        en="the largest value is not always the largest in size: a large negative gradient overflows too; take abs()",
        zh="最大值不一定绝对值最大：很大的负梯度同样会溢出，要取 abs()",
    ),
    "first_gradient_only": Hint(
        en="one gradient of the list decides alone: look at the largest value of all of them",
        zh="只看了列表中的一个梯度：要取所有梯度里的最大值",
    ),
    "never_below_one": Hint(
        en="where a gradient is above 65504 already, the scale has to go below 1: 1/2, 1/4, …",
        zh="梯度已经超过 65504 时，scale 必须小于 1：1/2、1/4……",
    ),
    "rounded_up": Hint(
        en="the power of two is rounded up, so the largest gradient overflows: round the exponent down",
        zh="2 的幂向上取整了，最大的梯度会溢出：指数应向下取整",
    ),
    "limit_too_high": Hint(
        en="2**16 itself is not an fp16 number: the largest is 65504, torch.finfo(torch.float16).max",
        zh="2**16 本身不是 fp16 能表示的数：最大是 65504，即 torch.finfo(torch.float16).max",
    ),
    "half_the_range": Hint(
        en="twice this scale would still fit: fp16 goes to 65504, not to 32768; does a loop stop a step early?",
        zh="再乘 2 也放得下：fp16 到 65504，不是 32768；循环是不是早停了一步？",
    ),
    "not_a_power": Hint(
        en="this is no power of two: only a power of two leaves the mantissas as they are, so that unscaling is exact",
        zh="这不是 2 的幂：只有乘 2 的幂才不改变尾数，除回来才精确",
    ),
    "smallest_lifted": Hint(
        en="the smallest value decides here, and the largest overflows: an inf costs the whole step, a zero one number",
        zh="这里由最小值决定，最大值会溢出：一个 inf 毁掉整步，一个 0 只丢一个数",
    ),
    # 04.master
    "optimizer_on_weights": Hint(
        en="the optimizer was given the 16-bit weights, where small updates round away: give it the fp32 copies",
        zh="optimizer 拿到的是 16 位权重，小的更新会被舍入掉：应给它 fp32 副本",
    ),
    "masters_in_16_bits": Hint(
        en="the masters have 16 bits themselves, so small updates round away: a copy has to be cast with .float()",
        zh="主权重自己也是 16 位，小的更新仍被舍入掉：复制时要用 .float() 转换",
    ),
    "masters_made_anew": Hint(
        en="the masters are made from the weights at every step, which forgets what 16 bits cannot hold: do it once",
        zh="每一步都从权重重新生成主权重，16 位放不下的部分就丢了：只在 __init__ 里生成一次",
    ),
    "gradients_not_copied": Hint(
        en="the masters do not move: backward fills the .grad of the 16-bit weights, and the optimizer looks at the "
        "masters' .grad",
        zh="主权重没有动：反向传播填的是 16 位权重的 .grad，而 optimizer 看的是主权重的 .grad",
    ),
    "stale_gradient": Hint(
        en="a weight without a gradient moves by that of the step before: its master's .grad has to become None too",
        zh="没有梯度的权重用上一步的梯度更新了：它的主权重的 .grad 也要设为 None",
    ),
    "not_copied_back": Hint(
        en="the masters are right and the weights stay: copy the masters down into the 16-bit weights after the step",
        zh="主权重是对的，但权重没变：更新后要把主权重复制回 16 位权重",
    ),
    "weights_in_32_bits": Hint(
        en="the weights became fp32: copy_ casts and keeps their dtype, an assignment to .data does not",
        zh="权重变成了 fp32：copy_ 会转换并保留类型，给 .data 赋值不会",
    ),
    "zeroes_masters_only": Hint(
        en="the gradients of the step before are still in the 16-bit weights: zero_grad() has to clear those, where "
        "backward adds",
        zh="16 位权重里还有上一步的梯度：zero_grad() 要清的是它们，反向传播往那里累加",
    ),
    "no_optimizer": Hint(
        en="call make_optimizer(masters) in __init__: it gives you the optimizer whose step() moves the masters",
        zh="在 __init__ 里调用 make_optimizer(masters)：得到的 optimizer 的 step() 会更新主权重",
    ),
    "gradients_not_cast": Hint(
        en="a 16-bit gradient cannot be the .grad of an fp32 master: cast it up with .float()",
        zh="16 位梯度不能直接作为 fp32 主权重的 .grad：先用 .float() 转换",
    ),
    "no_grad_forgotten": Hint(
        en="writing into a weight that requires grad is refused while autograd watches: decorate with @torch.no_grad()",
        zh="autograd 不允许原地改写需要梯度的权重：加上 @torch.no_grad()",
    ),
    "gradient_missing": Hint(
        en="a parameter that the batch did not use has .grad None: leave it out",
        zh="这个 batch 没用到的参数，其 .grad 是 None：要跳过",
    ),
    # 04.scaler and 04.overflow
    "multiplied": Hint(
        en="the gradients are multiplied by the scale once more: the loss was multiplied, so divide",
        zh="梯度又乘了一次 scale：损失已经乘过，这里应该除",
    ),
    "not_unscaled": Hint(
        en="the step was as large as the scaled gradient says: divide each .grad by the scale before optimizer.step()",
        zh="更新用的是放大后的梯度：optimizer.step() 之前要把每个 .grad 除以 scale",
    ),
    "unscaled_with_new_scale": Hint(
        en="the scale changes before the gradients are divided by it: unscale first, change the scale last",
        zh="scale 先变了，梯度才除以它：应先除，最后再改 scale",
    ),
    "never_skips": Hint(
        en="an inf or a NaN reached the weights: optimizer.step() only where every gradient is finite",
        zh="inf 或 NaN 进入了权重：所有梯度都有限时才能 optimizer.step()",
    ),
    "first_gradient_checked": Hint(
        en="only the first gradient is looked at, and an overflow in a later one is missed: is a return in the loop?",
        zh="只检查了第一个梯度，后面的溢出被漏掉：return 是不是写在循环里了？",
    ),
    "flag_overwritten": Hint(
        en="only the last gradient counts: the flag is set anew for each one; combine them with or",
        zh="只有最后一个梯度起作用：标志每次都被覆盖，应该用 or 合并",
    ),
    "nan_missed": Hint(
        en="NaN is missed: an overflow may come as inf - inf, which is NaN; torch.isfinite sees both",
        zh="漏掉了 NaN：溢出也可能以 inf - inf 即 NaN 的形式出现；torch.isfinite 两种都能发现",
    ),
    "inf_missed": Hint(
        en="inf is missed: isnan does not see it; torch.isfinite sees both",
        zh="漏掉了 inf：isnan 看不到它；torch.isfinite 两种都能发现",
    ),
    "inf_compared": Hint(
        en="a comparison with inf misses -inf, and NaN is equal to nothing: torch.isfinite sees all three",
        zh="与 inf 比较会漏掉 -inf，而 NaN 不等于任何数：torch.isfinite 三种都能发现",
    ),
    "flag_kept": Hint(
        en="after the first overflow every step is skipped: the flag has to be False again when a step begins",
        zh="第一次溢出之后每一步都被跳过：每步开始时标志要重新设为 False",
    ),
    "backoff_doubles": Hint(
        en="after an overflow the scale doubles, so the next overflows too: halve it",
        zh="溢出后 scale 翻倍，下一步又会溢出：应减半",
    ),
    "never_backs_off": Hint(
        en="after an overflow the scale stays, so the next step overflows again: halve it, on every rank",
        zh="溢出后 scale 没变，下一步还会溢出：应减半，而且每个 rank 都要减",
    ),
    "grows_every_step": Hint(
        en="the scale doubles after every good step: only after growth_interval good steps in a row",
        zh="每个正常步之后 scale 都翻倍：应连续 growth_interval 个正常步才翻倍一次",
    ),
    "never_grows": Hint(
        en="the scale never grows: after growth_interval good steps in a row it doubles",
        zh="scale 从不增大：连续 growth_interval 个正常步之后应翻倍",
    ),
    "interval_off_by_one": Hint(
        en="the scale doubles a step early or late: count the good step first, then compare with growth_interval",
        zh="scale 早一步或晚一步翻倍：先把这一步计入，再与 growth_interval 比较",
    ),
    "overflow_keeps_count": Hint(
        en="the scale grows too soon after an overflow: good steps count in a row, so an overflow sets the count to 0",
        zh="溢出后 scale 增大得太早：正常步必须连续，溢出要把计数清零",
    ),
    "growth_keeps_count": Hint(
        en="the first growth is right and the next is not: after a growth the count starts at 0 again",
        zh="第一次翻倍是对的，之后不对：翻倍后计数要从 0 重新开始",
    ),
    # 04.order
    "unscaled_twice": Hint(
        en="the gradients would be divided twice: unscale_ once a step, after the last backward and not in the loop",
        zh="梯度会被除两次：unscale_ 每步只调用一次，在最后一次 backward 之后，不在循环里",
    ),
    "unscaled_early": Hint(
        en="nothing is there to unscale yet: unscale_ comes after the backward of the last micro-batch",
        zh="这时还没有梯度：unscale_ 应在最后一个 micro-batch 的 backward 之后",
    ),
    "steps_every_micro_batch": Hint(
        en="each micro-batch makes a step of its own: let the gradients add up, and step once after the loop",
        zh="每个 micro-batch 都更新了一次：先让梯度累加，循环之后只更新一次",
    ),
    "clipped_scaled": Hint(
        en="the norm was clipped while the gradients were still scaled, so almost nothing is left: unscale_ first",
        zh="裁剪时梯度还是放大的，结果几乎什么都不剩：应先 unscale_ 再裁剪",
    ),
    "unscaled_late": Hint(
        en="what comes after step() does not change this step any more: unscale_, then clip, then step",
        zh="step() 之后的操作对这一步已经没有作用：先 unscale_，再裁剪，再 step",
    ),
    "not_clipped": Hint(
        en="the gradients were not clipped when the step was taken: clip_grad_norm_ belongs between unscale_ and step",
        zh="更新时梯度还没有裁剪：clip_grad_norm_ 应在 unscale_ 和 step 之间",
    ),
    "update_before_step": Hint(
        en="update() stands too early: it begins a new step, so that step() unscales again; it comes last, once a step",
        zh="update() 太早了：它开始新的一步，之后 step() 会再除一次；它应放在最后，每步一次",
    ),
    "update_forgotten": Hint(
        en="without update() the scaler never halves its scale and refuses the next step: call it last",
        zh="没有 update()，scaler 不会减半 scale，下一步也会报错：最后要调用它",
    ),
    "optimizer_stepped": Hint(
        en="optimizer.step() is called directly, which an inf does not stop: scaler.step(optimizer), and only that",
        zh="直接调用了 optimizer.step()，遇到 inf 也不会跳过：只用 scaler.step(optimizer)",
    ),
    "not_scaled": Hint(
        en="the loss was not scaled and the gradients were unscaled all the same: scaler.scale(loss).backward()",
        zh="损失没有放大，梯度却被除了：应为 scaler.scale(loss).backward()",
    ),
    "last_micro_batch_only": Hint(
        en="only the last micro-batch counts: zero_grad() belongs before the loop",
        zh="只有最后一个 micro-batch 起作用：zero_grad() 应放在循环之前",
    ),
    "not_cleared": Hint(
        en="the gradients of the step before are still in there: zero_grad() first",
        zh="里面还有上一步的梯度：先 zero_grad()",
    ),
    "not_divided": Hint(
        en="the losses of the micro-batches were added up: the mean wants each divided by their number",
        zh="各 micro-batch 的损失被加起来了：求平均要每个都除以 micro-batch 数",
    ),
    # 04.overflow
    "asks_only_when_found": Hint(
        en="a rank asks only when it has found an overflow, and nobody answers: reduce the flag in every step",
        zh="只有发现溢出的 rank 才去通信，别人不回应：每一步都要归约标志，所有 rank 都参加",
    ),
    "gradients_sent": Hint(
        en="more than a flag travels: the shards are each rank's own, so send one number, whether yours is finite",
        zh="传输的不只是标志：每个 rank 的分片是自己的，只需发送一个数，说明它是否有限",
    ),
    "nothing_returned": Hint(
        en="the new scale is not returned: the next step needs it",
        zh="没有返回新的 scale：下一步要用它",
    ),
    "steps_before_asking": Hint(
        en="a rank whose own shard is finite has stepped before it heard of the others: reduce the flag, then decide",
        zh="自己分片有限的 rank 还没听到别人的消息就更新了：先归约标志，再决定",
    ),
    "scale_averaged": Hint(
        en="the mean of the ranks' scales is no power of two and no scale of theirs: reduce the flag, not the scale",
        zh="各 rank 的 scale 取平均后不再是 2 的幂：要归约的是标志，不是 scale",
    ),
    "backs_off_alone": Hint(
        en="all skip, but only the rank that found the overflow halves its scale: the reduced flag decides both",
        zh="大家都跳过了，但只有发现溢出的 rank 把 scale 减半：两件事都由归约后的标志决定",
    ),
    "all_must_find": Hint(
        en="a step is skipped only where every rank overflows: one is enough; MAX of found, or MIN of finite",
        zh="所有 rank 都溢出才跳过：一个就够了；对“发现”取 MAX，或对“有限”取 MIN",
    ),
    "sum_equals_one": Hint(
        en="where two ranks overflow, the step is not skipped: the sum of the flags is 2 then; is it above 0?",
        zh="两个 rank 同时溢出时没有跳过：这时标志之和是 2；应判断是否大于 0",
    ),
    "rank_0_decides": Hint(
        en="only an overflow on rank 0 counts: a broadcast asks one rank, an all-reduce asks all",
        zh="只有 rank 0 的溢出起作用：broadcast 只听一个 rank，all-reduce 才听所有 rank",
    ),
    "flag_not_reduced": Hint(
        en="each rank acts on what it saw in its own shard, so they drift apart: all-reduce the flag before you decide",
        zh="每个 rank 只看自己的分片，于是各走各的：决定之前先对标志做 all-reduce",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
