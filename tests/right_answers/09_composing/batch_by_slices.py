"""No chunk: the first row of each micro-batch is counted, and copies are handed out."""

TASK = "09.batch"


def own_rows(batch, rank, dp, pp, tp, num_microbatches):
    size, rest = divmod(batch.shape[0], dp * num_microbatches)
    if rest:
        raise ValueError("the rows do not divide")
    start = (rank % (dp * tp)) // tp * num_microbatches * size
    return tuple(batch[start + i * size : start + (i + 1) * size].clone() for i in range(num_microbatches))
