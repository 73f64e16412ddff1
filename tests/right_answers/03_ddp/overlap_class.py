"""A class with __call__, and buckets of two layers."""

import torch
import torch.distributed as dist

TASK = "03.overlap"


class Overlap:
    def __init__(self, model):
        layers = [layer for layer in model if list(layer.parameters())]
        self.buckets = [
            [p for layer in layers[i : i + 2] for p in layer.parameters() if p.requires_grad]
            for i in range(0, len(layers), 2)
        ]
        self.missing, self.sent = [len(bucket) for bucket in self.buckets], []
        for number, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda _, number=number: self.arrived(number))

    def arrived(self, number):
        self.missing[number] -= 1
        if self.missing[number] == 0:
            flat = torch.cat([p.grad.flatten() for p in self.buckets[number]])
            self.sent.append((number, flat, dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)))

    def __call__(self):
        for number, flat, work in self.sent:
            work.wait()
            bucket = self.buckets[number]
            for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(piece.view_as(p))
            self.missing[number] = len(bucket)
        self.sent = []


def overlap_gradients(model):
    return Overlap(model)
