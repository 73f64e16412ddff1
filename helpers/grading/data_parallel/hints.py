"""The known mistakes of lab 02, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # 02.scatter
    "last_piece_dropped": Hint(
        en="the last examples are dropped: with len // num_devices rows a piece a rest remains; round up",
        zh="最后的样本被丢掉了：每份 len // num_devices 行会有剩余；应向上取整",
    ),
    "even_pieces": Hint(
        en="these pieces are as equal as possible; DataParallel fills each piece to the same size and the last gets "
        "the rest: 10 rows on 4 devices are 3, 3, 3, 1",
        zh="这样分得尽量平均；DataParallel 则每份一样大，最后一份是剩余：10 行分给 4 个设备是 3、3、3、1",
    ),
    "strided_pieces": Hint(
        en="each device gets every n-th row; the pieces are neighbouring rows, so that gather restores the order",
        zh="每个设备隔行取样；每一份应是相邻的行，gather 才能还原顺序",
    ),
    "empty_pieces": Hint(
        en="some pieces are empty: a device without rows gets no piece, so a small batch has fewer pieces than devices",
        zh="有的份是空的：没有样本的设备不分数据，小 batch 的份数少于设备数",
    ),
    "not_cut_inside": Hint(
        en="a tensor inside a tuple or dict goes to every device whole: call scatter itself for what is inside",
        zh="嵌在 tuple 或 dict 里的张量整个发给了每个设备：对里面的值递归调用 scatter",
    ),
    # 02.memory
    "optimizer_everywhere": Hint(
        en="only the master has an optimizer: a replica is made anew in every step and keeps nothing",
        zh="只有主设备有优化器状态：副本每步重新生成，不保留任何状态",
    ),
    "one_moment": Hint(
        en="Adam keeps two numbers a parameter: a moving mean of the gradient and one of its square",
        zh="Adam 每个参数保存两个数：梯度的滑动平均和梯度平方的滑动平均",
    ),
    "gradients_on_master_only": Hint(
        en="a replica computes the gradients of all its parameters, in its own memory, before they travel",
        zh="副本先在自己的内存里算出全部参数的梯度，然后才传回主设备",
    ),
    "gathered_forgotten": Hint(
        en="the master also holds the gathered outputs of the whole batch, beside those of its own replica",
        zh="主设备除了自己副本的输出，还有汇总后整个 batch 的输出",
    ),
    "own_share_forgotten": Hint(
        en="the gathered outputs are a copy: the master's own replica still has its own, for backward",
        zh="汇总的输出是一份拷贝：主设备自己的副本仍保留自己的输出，反向要用",
    ),
    "input_cut_on_master": Hint(
        en="the batch starts on the master, whole: its own piece is a view of it",
        zh="整个 batch 原本就在主设备上：主设备的那一份只是它的视图",
    ),
    "idle_replicas": Hint(
        en="a device without examples gets no replica either: DataParallel copies to as many as there are pieces",
        zh="没有样本的设备也没有副本：有几份数据才复制几个副本",
    ),
    # 02.gather
    "never_crosses": Hint(
        en="nothing crossed: on real devices torch.cat of tensors of two devices is an error; send(output, i, 0) first",
        zh="没有任何数据跨设备：真实设备上对不同设备的张量做 torch.cat 会报错；先 send(output, i, 0)",
    ),
    "gather_detaches": Hint(
        en="autograd does not see through send, so no gradient comes back: write a torch.autograd.Function",
        zh="autograd 看不到 send，梯度传不回来：写一个 torch.autograd.Function",
    ),
    "gradient_stays": Hint(
        en="the gradients are right but never left the master: each piece goes to its device, send(piece, 0, i)",
        zh="梯度的值正确，但没有离开主设备：每一份都要用 send(piece, 0, i) 送回去",
    ),
    "gradient_divided": Hint(
        en="gather averages nothing: in backward each output gets its rows of the gradient as they are",
        zh="gather 不做平均：反向时每份输出原样拿到自己那几行梯度",
    ),
    "whole_gradient": Hint(
        en="each output needs the gradient of its own rows: split the one that arrives at the outputs' lengths",
        zh="每份输出只要自己那几行的梯度：按各份的长度 split 收到的梯度",
    ),
    # 02.replicate
    "master_changed": Hint(
        en="copy.copy of a module shares its dicts _parameters, _buffers and _modules: give each replica new ones",
        zh="对 module 做 copy.copy 会共用 _parameters、_buffers、_modules 这几个 dict：每个副本要有新的 dict",
    ),
    "gradients_stay": Hint(
        en="the gradients stay on the replicas: a copy that autograd follows is clone(), not deepcopy, not detach()",
        zh="梯度留在了副本上：要用 autograd 能跟踪的拷贝 clone()，而不是 deepcopy 或 detach()",
    ),
    "weights_shared": Hint(
        en="the replicas compute with the master's own weights: clone() each parameter, as a copy to a device would",
        zh="副本直接用了主设备的权重：每个参数都要 clone()，就像复制到另一个设备",
    ),
    "buffers_shared": Hint(
        en="every replica writes into the model's buffers: those of all but replica 0 are copies",
        zh="每个副本都写了模型的 buffer：除副本 0 以外都应是拷贝",
    ),
    "buffers_lost": Hint(
        en="nothing that forward wrote is kept: replica 0 works with the model's own buffers",
        zh="前向写入的内容都丢了：副本 0 应使用模型自己的 buffer",
    ),
    "module_shared": Hint(
        en="the replicas are one module with its weights exchanged; threads would exchange them at the same time",
        zh="各副本其实是同一个 module 轮流换权重；多个线程会同时去换",
    ),
    # 02.parallel_apply
    "one_after_another": Hint(
        en="a replica is done before the next one starts: start all threads first, then join them",
        zh="一个副本结束了下一个才开始：先启动所有线程，再逐个 join",
    ),
    "exception_swallowed": Hint(
        en="an exception ends its thread and goes nowhere: catch it in the thread, raise it after join",
        zh="异常只结束了线程，没有传出来：在线程里捕获，join 之后再抛出",
    ),
    "order_of_completion": Hint(
        en="the outputs stand in the order in which the replicas finished: write each to its own place",
        zh="输出按完成的先后排列：每个输出应写到自己的位置",
    ),
    "grad_mode_lost": Hint(
        en="a new thread always records gradients: ask for torch.is_grad_enabled() before, set it inside the thread",
        zh="新线程总是记录梯度：启动前读 torch.is_grad_enabled()，在线程里恢复",
    ),
    "autocast_dtype_lost": Hint(
        en="autocast is on with its default dtype: hand over torch.get_autocast_dtype as well",
        zh="autocast 开了，但用的是默认 dtype：还要传入 torch.get_autocast_dtype 的结果",
    ),
    "autocast_lost": Hint(
        en="autocast is off in the threads: it belongs to a thread, so enter it again inside",
        zh="线程里 autocast 是关的：它属于线程，要在线程里重新进入",
    ),
    "device_unnamed": Hint(
        en="whoever reads this exception does not know which device it came from: error.add_note(f'device {i}')",
        zh="看到这个异常的人不知道它来自哪个设备：error.add_note(f'device {i}')",
    ),
    # 02.step
    "not_cleared": Hint(
        en="the gradients of the step before are still in there: optimizer.zero_grad() first",
        zh="里面还有上一步的梯度：先 optimizer.zero_grad()",
    ),
    "gradients_never_back": Hint(
        en="the gradients of the replicas do not reach the model: does your replicate clone, or does it deepcopy?",
        zh="副本的梯度没有回到模型：replicate 用的是 clone 还是 deepcopy？",
    ),
    "divided_by_devices": Hint(
        en="a small batch has fewer pieces than there are devices, and this divides by the devices",
        zh="小 batch 的份数少于设备数，而这里除以了设备数",
    ),
    "mean_of_means": Hint(
        en="a mean of means: an example of a short piece counts too much; add sums, divide once by len(x)",
        zh="这是平均的平均：短的一份里样本权重偏大；先求和，再除以 len(x)",
    ),
    "sum_for_mean": Hint(
        en="this looks like a sum where a mean is meant: divide by the number of examples of the whole batch",
        zh="看起来求的是和而不是平均：还要除以整个 batch 的样本数",
    ),
    "one_device": Hint(
        en="one device computes the whole batch: cut x and y, and give each replica its piece",
        zh="整个 batch 都在一个设备上计算：先切分 x 和 y，每个副本只算自己的一份",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
