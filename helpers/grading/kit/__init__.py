"""What the checks of several labs share: how to draw inputs, run a small model, compare results and name mistakes.

comparisons.py   comparisons with the right value or the log, each a Judgement, and the sentence about a wrong value;
                 tensor_comparisons.py compares tensors
answers.py       functions that are asked several questions, whose answers are numbers, texts or lists of them
histories.py     training runs of several steps: the right one, the learner's, and those with a known mistake
messages.py      functions on send and receive: what the ranks sent, call by call
merging.py       functions that merge the attention over two blocks of keys
model_tools.py   small models, gradient descent, and a meter of the memory in use

It exists so that the judge of a task holds only what is particular to the task. Begin with answers.py.
"""
