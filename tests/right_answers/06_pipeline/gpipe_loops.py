"""Two loops."""

TASK = "06.gpipe"


def gpipe(rank, num_stages, num_microbatches):
    actions = []
    for j in range(num_microbatches):
        actions.append(str(rank) + "F" + str(j))
    for j in range(num_microbatches):
        actions.append(str(rank) + "B" + str(j))
    return actions
