"""Never builds the whole line: it walks over the tensors and takes what falls into the own range."""

TASK = "08.shard"


def shard(tensors, rank, world_size):
    length = -(-sum(tensor.numel() for tensor in tensors) // world_size)
    begin, end = rank * length, (rank + 1) * length
    own, place = tensors[0].new_zeros(length), 0
    for tensor in tensors:
        a, b = max(begin, place), min(end, place + tensor.numel())
        if a < b:
            own[a - begin : b - begin] = tensor.flatten()[a - place : b - place]
        place += tensor.numel()
    return own
