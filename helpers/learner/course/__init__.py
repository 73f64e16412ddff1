"""What the course consists of: chapters and their stations, read from the notebooks; what a chapter needs of others.

chapters    every chapter, with stations, minutes, guesses and exercises
read_cells  the same of the cells of one notebook
week        the chapters to take before an interview, none before what it needs
"""

from helpers.learner.course.needs import check_order, in_order, needs, week
from helpers.learner.course.places import Chapter, chapters, find, folders
from helpers.learner.course.stations import Station, chapter_title, headings, read_cells

__all__ = [
    "Chapter",
    "Station",
    "chapter_title",
    "chapters",
    "check_order",
    "find",
    "folders",
    "headings",
    "in_order",
    "needs",
    "read_cells",
    "week",
]
