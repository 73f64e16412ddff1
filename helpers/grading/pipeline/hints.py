"""The known mistakes of lab 06, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # 06.gpipe and 06.one_f_one_b
    "rank_forgotten": Hint(
        en="this is the list of rank 0: the first number of an action is the stage, and rank r runs stage r",
        zh="这是 rank 0 的列表：动作的第一个数是 stage，rank r 运行 stage r",
    ),
    "counted_from_one": Hint(
        en="micro-batches are counted from 0: the first forward on rank 2 is 2F0",
        zh="micro-batch 从 0 开始编号：rank 2 的第一个前向是 2F0",
    ),
    "stages_for_micro_batches": Hint(
        en="as many forwards as stages: a rank works on every micro-batch, so it has num_microbatches of them",
        zh="前向的个数等于 stage 数：每个 rank 要处理所有 micro-batch，前向有 num_microbatches 个",
    ),
    "last_micro_batch_first": Hint(
        en="the backwards come in reverse, as the paper draws them: here, as in PyTorch, micro-batch 0 goes back first",
        zh="反向的顺序倒过来了（论文的图是这样）：这里与 PyTorch 一致，micro-batch 0 先做反向",
    ),
    "backwards_missing": Hint(
        en="the backwards are missing: after the last forward each micro-batch has to come back",
        zh="没有反向：最后一个前向之后，每个 micro-batch 都要做反向",
    ),
    "all_forwards_first": Hint(
        en="this is GPipe, all forwards first: rank r does num_stages - r, then a backward and a forward in turn",
        zh="这是 GPipe，先做完所有前向：rank r 只先做 num_stages - r 个，然后反向、前向交替",
    ),
    "one_after_the_other": Hint(
        en="each forward is followed by its own backward: while a micro-batch is elsewhere, the rank only waits",
        zh="每个前向后面紧跟自己的反向：micro-batch 在别的 stage 时，这个 rank 只能等",
    ),
    "warm_up_short": Hint(
        en="the warm-up is one forward too short: the last rank would go back before its first forward",
        zh="预热少了一个前向：最后一个 rank 会在第一个前向之前就做反向",
    ),
    "warm_up_long": Hint(
        en="the warm-up is one forward too long: the last rank goes back at once after one forward, and rank r does "
        "num_stages - r before",
        zh="预热多了一个前向：最后一个 rank 做一个前向就立刻反向，rank r 先做 num_stages - r 个",
    ),
    "warm_up_everywhere": Hint(
        en="every rank warms up alike: the later the stage, the sooner its first backward, so subtract the rank",
        zh="每个 rank 的预热都一样长：越靠后的 stage 越早开始反向，要减去 rank",
    ),
    "warm_up_turned_round": Hint(
        en="the warm-up is turned round: rank 0 waits longest for its first gradient and needs the most forwards",
        zh="预热的方向反了：rank 0 等第一个梯度的时间最长，需要最多的前向",
    ),
    "rest_forgotten": Hint(
        en="the last backwards are missing: once no forwards are left, the micro-batches in flight must come back",
        zh="少了最后的反向：前向做完以后，还在途中的 micro-batch 都要做反向",
    ),
    "fewer_than_stages": Hint(
        en="right, but not where there are fewer micro-batches than the warm-up wants: take the smaller number",
        zh="micro-batch 比预热所需的少时就不对了：要取两者中较小的",
    ),
    # 06.bubble
    "over_the_ideal": Hint(
        en="this is idle time over busy time, Megatron's (p-1)/m: here it is idle time over the whole step",
        zh="这是空闲时间除以工作时间，即 Megatron 的 (p-1)/m：这里要除以整个 step 的时间",
    ),
    "busy_share": Hint(
        en="this is the share in which the ranks work: the bubble is the rest",
        zh="这是工作时间的占比：气泡是剩下的部分",
    ),
    "idle_seconds": Hint(
        en="these are seconds: divide the idle time by the time of the whole step",
        zh="这是秒数：要把空闲时间除以整个 step 的时间",
    ),
    "one_rank": Hint(
        en="this is one rank's idle time: stages are not equally fast, so take the mean over all ranks",
        zh="这只是一个 rank 的空闲时间：各 stage 快慢不同，要对所有 rank 取平均",
    ),
    "own_span": Hint(
        en="each rank is measured from its own first start to its own last end: waiting before and after counts too",
        zh="每个 rank 只从自己的第一个动作算到最后一个：之前和之后的等待也算气泡",
    ),
    "nobody_waits": Hint(
        en="no rank waits for another: a forward needs the stage before it, a backward the stage behind it",
        zh="没有 rank 在等别人：前向要等前一个 stage，反向要等后一个 stage",
    ),
    "backward_waits_for_nobody": Hint(
        en="forwards wait and backwards do not: a backward needs the gradient of the stage behind it",
        zh="前向在等，反向没有等：反向需要后一个 stage 传来的梯度",
    ),
    "times_of_one_stage": Hint(
        en="all stages take the times of stage 0: forward and backward have a number for each stage",
        zh="所有 stage 都用了 stage 0 的时间：forward 和 backward 里每个 stage 各有一个数",
    ),
    "formula_of_equal_stages": Hint(
        en="the formula is for equal stages, and only for GPipe and 1F1B: play the schedule, action by action",
        zh="公式只适用于各 stage 一样快的 GPipe 和 1F1B：要一个动作一个动作地推演调度",
    ),
    "never_released": Hint(
        en="forwards are counted and never released: a backward frees what its micro-batch held",
        zh="只数了前向，没有释放：反向做完，该 micro-batch 的激活就释放了",
    ),
    "held_at_the_end": Hint(
        en="at the end nothing is held: remember the largest number on the way",
        zh="最后什么都不持有：要记住过程中的最大值",
    ),
    "formula_of_1f1b": Hint(
        en="this is what 1F1B holds, whatever the schedule: count in the list, forward one more, backward one less",
        zh="不论什么调度都给出 1F1B 的数：要在列表里数，前向加一，反向减一",
    ),
    # 06.cut
    "equal_counts": Hint(
        en="each stage gets as many layers: layers cost different times, and the slowest stage sets the pace",
        zh="每个 stage 的层数相同：各层耗时不同，最慢的 stage 决定速度",
    ),
    "greedy": Hint(
        en="filling one stage after the other up to the mean leaves the rest to the last: a larger limit may be better",
        zh="按平均值逐个填满，剩下的都给最后一个 stage：把上限放大一些可能更好",
    ),
    "empty_stage": Hint(
        en="every stage needs at least one layer, or its rank has nothing to do",
        zh="每个 stage 至少要有一层，否则那个 rank 无事可做",
    ),
    "layers_lost": Hint(
        en="some layers are in no stage: what is left over belongs to a stage, too",
        zh="有些层不在任何 stage 里：剩下的层也要分给某个 stage",
    ),
    "not_the_best": Hint(
        en="another cut has a faster slowest stage: what you make small must be the largest sum, over all cuts",
        zh="还有更好的切法：要在所有切法中让最大的和最小",
    ),
    # 06.stage
    "sends_block": Hint(
        en="two neighbours send to each other, and each waits for the other to receive: use isend, and wait at the end",
        zh="相邻两个 rank 互相发送，都在等对方接收：用 isend 发起，最后再 wait",
    ),
    "inputs_everywhere": Hint(
        en="only the first rank has inputs, and only the last one targets: the others work on what arrives",
        zh="只有第一个 rank 有 inputs，只有最后一个 rank 有 targets：其他 rank 处理收到的张量",
    ),
    "ends_forgotten": Hint(
        en="the first rank has nobody before it and the last nobody behind it: there nothing is received or sent",
        zh="第一个 rank 前面没有人，最后一个 rank 后面没有人：那里不收也不发",
    ),
    "nobody_sends": Hint(
        en="a rank waits for what nobody sends: an activation goes on right after its F, and after B the gradient of "
        "the input goes back",
        zh="有 rank 在等没人发的消息：F 之后立刻把激活发给下一个，B 之后把输入的梯度发回上一个",
    ),
    "only_the_latest_kept": Hint(
        en="several micro-batches are in flight: keep input and output of each by its number until its backward",
        zh="同时有几个 micro-batch 在途中：要按编号保存每个的输入和输出，直到它的反向",
    ),
    "no_gradient_for_the_input": Hint(
        en="the input has no gradient: what arrives is a leaf, so call requires_grad_() before the stage uses it",
        zh="输入没有梯度：收到的张量是叶子，进入 stage 之前要调用 requires_grad_()",
    ),
    "order_ignored": Hint(
        en="the stage does not follow its list: go through `actions` in order, it may be any schedule",
        zh="没有按列表执行：要依次执行 actions，它可以是任何调度",
    ),
    "loss_missing": Hint(
        en="the last rank returns no loss: only it knows the outputs, so it has to say how training goes",
        zh="最后一个 rank 没有返回损失：只有它知道输出",
    ),
    "loss_of_the_last": Hint(
        en="this is the loss of the last micro-batch: the step's loss is the mean over all of them",
        zh="这是最后一个 micro-batch 的损失：一步的损失是所有 micro-batch 的平均",
    ),
    "not_divided": Hint(
        en="a sum over micro-batches where a mean is meant: divide each loss by their number before backward",
        zh="这是各 micro-batch 的总和，不是平均：反向之前把每个损失除以 micro-batch 数",
    ),
    "divided_on_every_stage": Hint(
        en="divided more than once: the gradient that arrives is divided already, only the loss has to be",
        zh="除了不止一次：收到的梯度已经除过了，只有损失需要除",
    ),
    "divided_by_stages": Hint(
        en="divided by the number of ranks: they hold different layers, not different data; divide by micro-batches",
        zh="除以了 rank 数：各 rank 的层不同，数据并没有分；应除以 micro-batch 数",
    ),
    "cleared_every_micro_batch": Hint(
        en="only the last micro-batch is left: gradients of all micro-batches add up, so clear none in between",
        zh="只剩最后一个 micro-batch：所有 micro-batch 的梯度要累加，中间不能清零",
    ),
    "ones_for_the_gradient": Hint(
        en="backward starts from ones: it has to go on from the gradient that arrives, output.backward(gradient)",
        zh="反向从全 1 开始：应从收到的梯度继续，output.backward(gradient)",
    ),
    "not_waited": Hint(
        en="a message is still on its way when it returns: keep the works of isend, and wait() for each at the end",
        zh="返回时还有消息在路上：保存 isend 返回的 work，最后逐个 wait()",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
