"""Provides the guesses that a chapter asks for before it shows a result: questions, answers, and how far off they were.

NN_topic.yaml  the declared answers of a chapter: key -> answer, and the question in Chinese
questions      one question (its form, kind, unit and options), with its declared answer
storage        the learner's answers: in the progress file, in this kernel, in a folder that a class of learners shares
calibration    how far an answer is from the truth, and how well somebody guesses

In a notebook, `helpers.widgets.guess` asks a question and `helpers.widgets.reveal` shows the result. Nothing here
draws, and nothing here needs torch.

It exists because a result stays in memory better once one has bet on it. Begin with questions.py.
"""
