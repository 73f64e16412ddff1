"""Pictures as plain data: build a Scene, then `picture(scene)` shows it in a notebook.

timeline_scene         ranks, compute and communication on one axis
trace_scene            a stretch of a run's traces: a band per rank with its lanes, who waits for whom
pipeline_scene         a pipeline's step: micro-batches, idle time, and what each rank holds
collective_scene       which rank holds which chunk, step by step
collective_step_scene  one step of a collective, its messages as arrows
topology_scene         ring, tree, star: who sends to whom
buckets_scene          gradients packed into buckets, one message each
copies_scene           equal stacks beside each other, and the memory of one device
shares_scene           what a rank sends in a step, message by message, in parts of P
messages_scene         messages in the order in which they were sent
curves_scene           curves on linear or logarithmic axes, each named at its end
week_scene             a week of a job that fails: work, saves, lost work, repairs
effective_scene        the share of the time that is kept, by the interval between two saves
step_scene             a predicted step as a waterfall of its terms, or two steps below each other
speedup_scene          how fast more GPUs are: predicted, measured, ideal, Amdahl's
bytes_scene            predicted, measured, your guess
payloads_scene         the messages of several ways, as long as their bytes
token_weights_scene    what a token weighs in two means
memory_curve_scene     what a rank holds over the time of a step
memory_scene           what fills a rank's memory, and the device's limit
lines_scene            curves over one axis, and dots on them
parts_scene            rows of named parts: what something consists of
calls_scene            the calls of two ranks: who meets, who waits
magnitudes_scene       where values lie in powers of two, and what a format makes of them
number_formats_scene   bits and range of fp32, bf16, fp16, fp8, and where values lie
shards_scene           matrices side by side, cut into the parts of the ranks
course_map_scene       the chapters, their stations as wide as their minutes, what is done
standstill_scene       a job of many GPUs, from outside; first_contact.py and blame.py have chapter 00's others
tensor_layer_scene     f and g around attention and MLP, and who sends in which pass
mesh_scene             a device mesh on its nodes, and the groups of one rank
mesh_plan_scene        the same with cards to click, what the rank sends on each axis, and what it holds
cube_scene             dp x pp x tp as a solid, and the groups of one rank
chart_axes, chart      a matplotlib plot that looks like the rest
healing_scene          copies of a model over the rounds of a run: who was there, who was healed by whom
guesses_scene          each guess beside the truth, on a logarithmic axis
votes_scene            how a class answered a question
show                   the source of a class or function
"""

from helpers.draw.bars import bytes_scene
from helpers.draw.blame import kinds_scene, rounds_scene
from helpers.draw.buckets import buckets_scene
from helpers.draw.calls import calls_scene
from helpers.draw.chart import Chart, chart, chart_axes
from helpers.draw.chunk_step import collective_step_scene
from helpers.draw.chunks import collective_scene
from helpers.draw.copies import copies_scene
from helpers.draw.course_map import MapRow, course_map_scene
from helpers.draw.cube import cube_scene
from helpers.draw.curves import Axis, curves_scene
from helpers.draw.failures import effective_scene, week_scene
from helpers.draw.figure import to_figure
from helpers.draw.first_contact import (
    all_reduce_scene,
    means_scene,
    pairing_scene,
    processes_scene,
    ring_scene,
    standing_scene,
    standstill_scene,
)
from helpers.draw.formats import number_formats_scene
from helpers.draw.guesses import GuessMark, guesses_scene, votes_scene
from helpers.draw.healing import healing_scene
from helpers.draw.lines import lines_scene
from helpers.draw.magnitudes import magnitudes_scene
from helpers.draw.matrix import Matrix
from helpers.draw.memory import memory_scene
from helpers.draw.memory_curve import memory_curve_scene
from helpers.draw.mesh import mesh_scene
from helpers.draw.mesh_plan import AxisUse, mesh_plan_scene
from helpers.draw.messages import Message, messages_scene, zero_messages
from helpers.draw.parts import Part, parts_scene
from helpers.draw.payloads import payloads_scene, token_weights_scene
from helpers.draw.picture import Picture, picture
from helpers.draw.pipeline import pipeline_scene
from helpers.draw.png import to_png
from helpers.draw.scaling import speedup_scene
from helpers.draw.scene import Label, Line, Rect, Scene
from helpers.draw.shards import shards_scene
from helpers.draw.shares import Share, shares_scene, zero_shares
from helpers.draw.source import Source, show
from helpers.draw.svg import to_svg
from helpers.draw.tensor_layer import tensor_layer_scene
from helpers.draw.timelines import timeline_scene
from helpers.draw.topology import topology_scene
from helpers.draw.trace import trace_scene
from helpers.draw.waterfall import step_scene
from helpers.predict.precision.formats import NUMBER_FORMATS, NumberFormat, number_format

__all__ = [
    "Axis",
    "AxisUse",
    "Message",
    "Share",
    "copies_scene",
    "cube_scene",
    "curves_scene",
    "messages_scene",
    "shares_scene",
    "zero_messages",
    "zero_shares",
    "NUMBER_FORMATS",
    "GuessMark",
    "Label",
    "Line",
    "MapRow",
    "Matrix",
    "Part",
    "Chart",
    "NumberFormat",
    "Picture",
    "Rect",
    "Scene",
    "Source",
    "all_reduce_scene",
    "buckets_scene",
    "bytes_scene",
    "calls_scene",
    "chart",
    "chart_axes",
    "collective_scene",
    "collective_step_scene",
    "effective_scene",
    "guesses_scene",
    "healing_scene",
    "week_scene",
    "kinds_scene",
    "course_map_scene",
    "lines_scene",
    "magnitudes_scene",
    "memory_curve_scene",
    "means_scene",
    "memory_scene",
    "mesh_plan_scene",
    "mesh_scene",
    "number_format",
    "number_formats_scene",
    "pairing_scene",
    "parts_scene",
    "payloads_scene",
    "picture",
    "pipeline_scene",
    "processes_scene",
    "ring_scene",
    "rounds_scene",
    "shards_scene",
    "show",
    "speedup_scene",
    "standing_scene",
    "standstill_scene",
    "step_scene",
    "tensor_layer_scene",
    "timeline_scene",
    "to_figure",
    "token_weights_scene",
    "to_png",
    "to_svg",
    "topology_scene",
    "trace_scene",
    "votes_scene",
]
