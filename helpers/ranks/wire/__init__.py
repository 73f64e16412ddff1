"""Wraps gloo, so that every operation of every process group passes through this package on its way.

wire     the backend "wire" of torch.distributed, and the functions by which others use it
group    one process group: it posts each operation to the board, issues it, and completes it
methods  the methods of a process group, one for each operation of torch.distributed
work     an operation in flight, and the signature by which ranks compare it
session  what all groups of a process share: settings, an injected fault, an emulated link, pending operations
meeting  how ranks wait for each other outside of gloo, while they make a group or wait for a key
gloo     what must be known about gloo itself
rules    how the rules of another backend, such as NCCL's, take part

This file imports nothing, because the notebook, which need not have torch, uses `rules` alone.
"""
