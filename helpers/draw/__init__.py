"""Provides pictures as plain data: a `..._scene` function returns a Scene, and `picture(scene)` shows it in a notebook.

scene                   Scene and its parts: Rect, Label, Line; titles, legends, and several scenes in one
palette                 the colours and textures of every kind
svg, png                draw a Scene: live views as SVG, saved notebooks as PNG
picture                 what a cell shows, and the style that turns saved pictures dark
source                  `show`: the source of a class or function
axis                    grid lines, and axes with round ticks
rows                    rows of labelled bars: parts_scene, rows_scene
plot                    curves on axes: curves_scene
waterfall               where a step's time goes
timelines, pipeline     ranks over time, traces, and the steps of a pipeline
memory                  what fills a rank's memory, as bars, over time, and as equal stacks
mesh                    a device mesh on its nodes
collectives, topology   who holds which chunk after each step, and who sends to whom
shards                  matrices that are split into the parts of ranks
course_map, guesses     the chapters with a learner's progress, and guesses beside the truth
chapters/               pictures of one chapter and its explorer, in a file with the chapter's name

The names below are what notebooks and explorers import.

It is apart from the widgets so that a picture needs neither a browser nor torch. Begin with scene.py.
"""

from helpers.draw.chapters.amp import magnitudes_scene, number_formats_scene
from helpers.draw.chapters.composing import AxisUse, cube_scene, mesh_plan_scene
from helpers.draw.chapters.ddp import buckets_scene, payloads_scene, token_weights_scene
from helpers.draw.chapters.fault_tolerance import effective_time_scene, healing_scene, week_scene
from helpers.draw.chapters.pipeline import calls_scene
from helpers.draw.chapters.scaling import speedup_scene
from helpers.draw.chapters.start_here import (
    all_reduce_scene,
    broadcast_rounds_scene,
    error_kinds_scene,
    hang_scene,
    killed_rank_scene,
    late_stack_scene,
    means_scene,
    pairing_scene,
    processes_scene,
    ring_scene,
)
from helpers.draw.chapters.tensor_parallel import tensor_layer_scene
from helpers.draw.chapters.zero import SentMessage, messages_scene, shares_scene, zero_messages, zero_shares
from helpers.draw.collectives import collective_scene, collective_step_scene
from helpers.draw.course_map import MapRow, course_map_scene
from helpers.draw.guesses import GuessMark, guesses_scene, votes_scene
from helpers.draw.memory import memory_curve_scene, memory_scene, replicas_scene
from helpers.draw.mesh import mesh_scene
from helpers.draw.picture import Picture, picture
from helpers.draw.pipeline import pipeline_scene
from helpers.draw.plot import Axis, curves_scene
from helpers.draw.png import to_png
from helpers.draw.rows import Part, parts_scene
from helpers.draw.scene import Label, Line, Rect, Scene
from helpers.draw.shards import Matrix, shards_scene
from helpers.draw.source import Source, show
from helpers.draw.svg import to_svg
from helpers.draw.timelines import timeline_scene, trace_scene
from helpers.draw.topology import topology_scene
from helpers.draw.waterfall import step_scene
from helpers.predict.precision import NUMBER_FORMATS, NumberFormat, number_format

__all__ = [
    "Axis", "AxisUse", "GuessMark", "Label", "Line", "MapRow", "Matrix", "NUMBER_FORMATS", "NumberFormat", "Part",
    "Picture", "Rect", "Scene", "SentMessage", "Source", "all_reduce_scene", "broadcast_rounds_scene",
    "buckets_scene", "calls_scene", "collective_scene", "collective_step_scene", "course_map_scene", "cube_scene",
    "curves_scene", "effective_time_scene", "error_kinds_scene", "guesses_scene", "hang_scene", "healing_scene",
    "killed_rank_scene", "late_stack_scene", "magnitudes_scene", "means_scene", "memory_curve_scene",
    "memory_scene", "mesh_plan_scene", "mesh_scene", "messages_scene", "number_format", "number_formats_scene",
    "pairing_scene", "parts_scene", "payloads_scene", "picture", "pipeline_scene", "processes_scene",
    "replicas_scene", "ring_scene", "shards_scene", "shares_scene", "show", "speedup_scene", "step_scene",
    "tensor_layer_scene", "timeline_scene", "to_png", "to_svg", "token_weights_scene",
    "topology_scene", "trace_scene", "votes_scene", "week_scene", "zero_messages", "zero_shares",
]  # fmt: skip
