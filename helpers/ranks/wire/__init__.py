"""Wraps gloo in a backend of our own, which logs and compares operations, emulates a slow link and injects faults.

torch calls the backend for every operation of every process group. Ranks compare what they are about to do through the
board (helpers.ranks.board), shared memory in which each of them writes its next operation before it makes the call.
Begin with group.py, which lists the steps that an operation goes through, and then read wire.py.

group    one process group: it posts each operation to the board, issues it, and completes it
wire     the backend "wire" of torch.distributed, and the functions by which others use it
methods  the methods of a process group, one for each operation of torch.distributed
work     an operation in flight, and the signature by which ranks compare it
session  what all groups of a process share: settings, an injected fault, an emulated link, pending operations
meeting  how ranks wait for each other outside of gloo: while they make a group, or wait for a key of torch's store
gloo     which ranks an operation of gloo needs, how to wait for it, and how to close connections despite gloo's bugs
rules    how the rules of another backend, such as NCCL's, take part

This file imports nothing, because the notebook, which need not have torch, uses `rules` alone.
"""
