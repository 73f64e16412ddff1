"""Whoever writes the loop and means to add threads later."""

TASK = "02.parallel_apply"
HINT = "one_after_another"


def parallel_apply(replicas, inputs):
    outputs = []
    for device, (replica, x) in enumerate(zip(replicas, inputs, strict=True)):
        try:
            outputs.append(replica(x))
        except Exception as error:
            error.add_note(f"device {device}")
            raise
    return outputs
