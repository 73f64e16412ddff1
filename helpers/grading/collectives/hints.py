"""The known mistakes of lab 01, the more specific ones first."""

from helpers.grading.task import Hint

HINTS = {
    # all tasks that send
    "calls_a_collective": Hint(
        en="this task builds the collective: use only send, recv, isend, irecv and batch_isend_irecv",
        zh="本题就是要实现这个集合通信：只能用 send、recv、isend、irecv 和 batch_isend_irecv",
    ),
    "sends_to_itself": Hint(
        en="a rank cannot send to itself: what stays on the rank is copied (on 1 rank that is everything)",
        zh="rank 不能给自己发消息：留在本 rank 的部分直接复制（只有 1 个 rank 时就是全部）",
    ),
    "not_waited": Hint(
        en="a message is still on its way when the function returns: call wait() on every work of isend and irecv",
        zh="函数返回时还有消息在路上：isend 和 irecv 返回的每个 work 都要 wait()",
    ),
    "overwrites_send_buffer": Hint(
        en="the tensors that you were given have changed: receive into a tensor of your own (torch.empty_like), "
        "not into one that is being sent",
        zh="传入的张量被改了：应接收到自己新建的张量（torch.empty_like），不要写进正在发送的张量",
    ),
    "sends_first": Hint(
        en="every rank sends before it receives, and send waits for its receiver: a circle. Post both (isend and "
        "irecv), then wait",
        zh="所有 rank 都先发后收，而 send 要等对方接收：互相等待。先把 isend 和 irecv 都发起，再 wait",
    ),
    "receives_first": Hint(
        en="every rank receives before anybody has sent: a circle. Post both (isend and irecv), then wait",
        zh="所有 rank 都先收后发，没有人在发：互相等待。先把 isend 和 irecv 都发起，再 wait",
    ),
    "sizes_differ": Hint(
        en="both ends must mean the same chunk, and chunks differ by one element: make the buffer as long as the "
        "chunk that arrives, not as your own",
        zh="收发双方必须指同一块，而各块长度可能差一个元素：缓冲区应与到达的那一块等长，而不是与自己的块等长",
    ),
    # 01.cost
    "bytes_of_all_ranks": Hint(
        en="these are the bytes that all ranks send together: one rank sends a chunk, 1/N of the tensor, in each step",
        zh="这是所有 rank 发送的总和：每一步一个 rank 只发一块，即张量的 1/N",
    ),
    "whole_tensor_bytes": Hint(
        en="a rank never sends the whole tensor at once in a ring: it sends chunks of 1/N, in how many steps?",
        zh="环形算法从不一次发送整个张量：每步只发 1/N 的一块，一共几步？",
    ),
    "one_phase": Hint(
        en="this is half of it: an all-reduce is a reduce-scatter and an all-gather, each of N - 1 steps",
        zh="这只是一半：all-reduce 由 reduce-scatter 和 all-gather 组成，各 N - 1 步",
    ),
    "latency_once": Hint(
        en="the latency is counted once, but every step waits for the one before: each of the 2(N-1) steps pays it",
        zh="延迟只算了一次：每一步都要等上一步，2(N-1) 步每步都要付",
    ),
    "tree_one_way": Hint(
        en="this tree goes one way: an all-reduce by tree is a reduce up and a broadcast down",
        zh="这棵树只走了一趟：树形 all-reduce 是先归约上去，再广播下来",
    ),
    "log_not_rounded": Hint(
        en="there are no parts of a round: log2 of N rounded up, (N - 1).bit_length()",
        zh="轮数是整数：log2(N) 要向上取整，即 (N - 1).bit_length()",
    ),
    # 01.shift
    "wrong_direction": Hint(
        en="this came from the right: send to rank + 1 and receive from rank - 1, both modulo the world size",
        zh="这是右邻居的：发给 rank + 1，从 rank - 1 接收，都要对 world size 取模",
    ),
    # 01.all_to_all
    "own_part_missing": Hint(
        en="everything from the others is right; the part that this rank gives itself is missing: copy it",
        zh="来自其他 rank 的都对，缺的是给自己的那一份：复制过来",
    ),
    "wrong_slice": Hint(
        en="the wrong part was sent: rank j gets tensors[j], the index of the receiver, whoever sends",
        zh="发错了部分：发给 rank j 的是 tensors[j]，下标是接收方的 rank",
    ),
    "wrong_place": Hint(
        en="the right tensors in the wrong places: what comes from rank i belongs at index i of the result",
        zh="张量没错，位置错了：来自 rank i 的应放在结果的第 i 个",
    ),
    # 01.broadcast
    "place_for_rank": Hint(
        en="a place in the tree is taken for a rank: the rank at a place is (place + root) % N",
        zh="把树中的位置当成了 rank：位置对应的 rank 是 (place + root) % N",
    ),
    "root_ignored": Hint(
        en="this is the tensor of rank 0, whatever the root: let the root stand at place 0, (rank - root) % N",
        zh="得到的总是 rank 0 的张量：让 root 站在位置 0，即 (rank - root) % N",
    ),
    "rounds_rounded_down": Hint(
        en="the last ranks hear nothing: a tree needs log2 of N rounds, rounded up",
        zh="最后几个 rank 什么也没收到：轮数是 log2(N) 向上取整",
    ),
    "root_sends_to_all": Hint(
        en="the root sends to everybody itself, one after the other: whoever has the tensor helps to pass it on",
        zh="root 自己逐个发给所有人：已经收到的 rank 也应帮忙转发",
    ),
    "chain": Hint(
        en="this passes the tensor along a chain, N - 1 rounds: in a tree twice as many ranks have it after each round",
        zh="这是一条链，要 N - 1 轮：树形每一轮让持有张量的 rank 数翻倍",
    ),
    # rings
    "whole_tensors": Hint(
        en="whole tensors travel around the ring: cut with torch.tensor_split and send one chunk a step",
        zh="环上传的是整个张量：用 torch.tensor_split 切块，每步只发一块",
    ),
    "not_a_ring": Hint(
        en="in a ring each rank sends to its right neighbour only, (rank + 1) % N, and passes on what came in",
        zh="环形算法中每个 rank 只发给右邻居 (rank + 1) % N，把收到的再传下去",
    ),
    "chunk_off_by_one": Hint(
        en="a chunk is off by one: whoever starts with chunk r - 1 ends with chunk r complete, and hands out that one",
        zh="块号差一：从第 r - 1 块开始发，最后完整的是第 r 块，接着要传出的也是它",
    ),
    "copies_instead_of_adding": Hint(
        en="a part of one rank alone: what arrives has to be added to your own part before it travels on",
        zh="只剩一个 rank 的部分：收到的要先加到自己的部分上，再传下去",
    ),
    "adds_in_second_phase": Hint(
        en="in the second phase finished sums travel: copy them, do not add again",
        zh="第二阶段传的是已完成的和：应复制，不要再加",
    ),
    "no_all_gather": Hint(
        en="each rank has its own finished chunk, and nobody hands them out: N - 1 more steps",
        zh="每个 rank 只有自己那块是完整的，没有分发出去：还要 N - 1 步",
    ),
    "one_step_short": Hint(
        en="one step is missing: a chunk has to pass N - 1 ranks, so each phase takes N - 1 steps",
        zh="少了一步：一块要经过 N - 1 次传递，每个阶段是 N - 1 步",
    ),
    "not_in_place": Hint(
        en="the tensor is as it was: write into it (tensor[...] = , copy_, +=); `tensor = ...` makes only a new name",
        zh="张量没有变：要写进它里面（tensor[...] =、copy_、+=）；tensor = ... 只是换了个名字",
    ),
}


def of(*keys: str) -> dict[str, Hint]:
    """The hints of one task."""
    return {key: hint for key, hint in HINTS.items() if key in keys}
