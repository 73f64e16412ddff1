"""Pictures as plain data: build a Scene, then `picture(scene)` shows it in a notebook.

timeline_scene     ranks, compute and communication on one axis     bytes_scene       predicted, measured, your guess
collective_scene   which rank holds which chunk, step by step       memory_scene      what fills a rank's memory
topology_scene     ring, tree, star: who sends to whom              show              the source of a class or function
"""

from helpers.draw.bars import bytes_scene, memory_scene
from helpers.draw.chunks import collective_scene
from helpers.draw.figure import to_figure, to_png
from helpers.draw.picture import Picture, picture
from helpers.draw.scene import Label, Line, Rect, Scene
from helpers.draw.source import Source, show
from helpers.draw.svg import to_svg
from helpers.draw.timelines import timeline_scene
from helpers.draw.topology import topology_scene

__all__ = [
    "Label",
    "Line",
    "Picture",
    "Rect",
    "Scene",
    "Source",
    "bytes_scene",
    "collective_scene",
    "memory_scene",
    "picture",
    "show",
    "timeline_scene",
    "to_figure",
    "to_png",
    "to_svg",
    "topology_scene",
]
