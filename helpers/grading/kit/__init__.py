"""What several labs use to draw cases and to judge answers.

making.py     numbers and models that a check draws
judging.py    comparisons, one Finding each
telling.py    how a wrong value is said: shape, factor, place, the digit in which it differs
answers.py    answers that are a number or a word
messages.py   what the ranks sent, call by call
meter.py      bytes that are alive while the learner's code runs
stories.py    the same training run told with and without a mistake
"""
