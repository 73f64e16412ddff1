"""Groups what concerns one learner: their language, their guesses, their way through the course, their progress.

A chapter is a notebook of the course, and its stations are the sections of the notebook. Before a chapter shows a
result, it asks for a guess.

words/       every text that a person reads, in each language of the course
guesses/     the guesses that a chapter asks for: declared answers, first answers, and how far off they are
course.py    the chapters and their stations, read from the notebooks, and what each needs of the others
progress.py  the file in which a learner's results are stored
hooks.py     what JupyterLab and IPython load in every kernel of this environment

Begin with course.py.
"""
