"""Declares lab 05, in which learners count the bytes of training and keep them down, and where each task is judged.

byte_formulas.py       05.count        parameters of a GPT
                       05.states       bytes of parameters, gradients and optimizer states on a rank, with ZeRO
                       05.llama        parameters of a Llama; only the chapter asks it
                       05.activations  bytes of activations that one layer stores for backward
training_loops.py      05.accumulate   gradient accumulation that holds one micro-batch at a time
                       05.evaluate     an evaluation loop that holds no graph; only the chapter asks it
saved_activations.py   05.checkpoint   activation checkpointing, with the same dropout in the second pass
                       05.chunked      cross entropy that never holds the logits of all tokens
mistakes.yaml          the known mistakes, as edits of the right answers
hints.yaml             what a learner is told about each of them
messages.yaml          what its judges say besides: names of values, and sentences about what is wrong

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("05")
