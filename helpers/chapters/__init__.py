"""Holds what each chapter runs and draws: one file per chapter, named like its topic, imported by that notebook only.

Chapters use everything below them: the strategies, the instruments of `observe`, predictions, pictures and widgets.
What two chapters need moves down, for example to `observe/training.py`. Nothing else imports a chapter; the myths of
the interview name functions of `myths.py` by their dotted path.
"""
