"""Provides every widget of the course: explorers with dials, interview views, guesses, and maps of the progress.

Each is an ipywidget that also works without a front end, and a saved notebook keeps a picture or text of it. `view.py`
has what all of them share, `explorer.py` the base classes of the explorers, `talk_view.py` that of the
interview views.

Clock                 counts down against a limit in the browser, also while the kernel works
CourseMap             what course_map returns: chapters, stations, what is passed and which cards are due
CollectiveExplorer    any collective and algorithm, step by step: which rank has which chunk, bytes and seconds so far
DataParallelExplorer  one step of nn.DataParallel: devices, the master's link, parameters, Python's lock
DialogueView          a worked interview, turn by turn, in which the learner answers before the candidate does
DrillView             a function to write in 15 minutes, with a clock; helpers.grading.drill(key) brings the lab's check
FaultExplorer         a week of a job that fails: nodes, rate, save, repair, interval; how often it should save
MemoryExplorer        the bytes of each rank by kind: model, plan, batch, GPU; does it fit, and what would help
MeshExplorer          a plan on nodes of GPUs: the groups of any rank, bytes and link of each, memory of all
MockView              a mock interview: five cards, one drill, then a sheet; helpers.grading.mock_view() has the checks
OverlapExplorer       one DDP step: dials for bucket, bandwidth, latency, ranks, compute; what is left exposed
PipelineExplorer      one step of a pipeline: schedule, ranks, micro-batches, times; bubble, and memory of each rank
PrecisionExplorer     a GPT's numbers, what fp16, bf16 and fp8 keep of them, and what a loss scale brings back
ProgressView          what the learner has passed, and the next task; helpers.grading.progress_view() has them all
QuizView              interview cards, those that are due first: folded, multiple choice, a number to predict
RoundView             debugging, code review or design: lines to mark, plans to write, a clock, a sheet with points
ScalingExplorer       a step's waterfall, its speed-up on 1 to 16,384 GPUs, when more do not pay, days and GPU-hours
StrategyExplorer      which strategy trains a model on a cluster: memory of each, traffic, an estimated step, the reason
TensorSplitExplorer   a layer split over ranks, number by number, and what is sent; sequence parallelism
TimelineExplorer      any Timeline: zoom, hover, and a play head that shows what each rank does and stores
TraceExplorer         the traces of a run, step by step: four ranks, their lanes, and who waits for whom
ZeroExplorer          a training step at each stage of ZeRO: gather, compute, free; and the bytes of a real model

course_map            chapters, stations, minutes; what is passed and guessed, which cards are due, what comes next
guess                 asks before a result is shown: a number, a range, a choice, an order; only the first answer counts
reveal                your guess, the prediction and what was found, and what shows why; folded until it was guessed
my_guesses            the learner's guesses of a chapter compared with the true answers, in one picture
my_calibration        how well the learner guesses, by kind: memory, traffic, time, count
votes                 how a class guessed, read from the folder GUESS_BOX

Begin with view.py, and then read explorer.py.
"""

from helpers.widgets.clock import Clock
from helpers.widgets.collective_explorer import CollectiveExplorer
from helpers.widgets.data_parallel_explorer import DataParallelExplorer, OverlapExplorer
from helpers.widgets.fault_explorer import FaultExplorer
from helpers.widgets.guess_results import my_calibration, my_guesses, votes
from helpers.widgets.guess_view import guess
from helpers.widgets.interview_views import DialogueView, DrillView, MockView, QuizView, RoundView
from helpers.widgets.memory_explorer import MemoryExplorer
from helpers.widgets.mesh_explorer import MeshExplorer
from helpers.widgets.pipeline_explorer import PipelineExplorer
from helpers.widgets.precision_explorer import PrecisionExplorer
from helpers.widgets.progress_view import CourseMap, ProgressView, course_map
from helpers.widgets.reveal_view import reveal
from helpers.widgets.scaling_explorer import ScalingExplorer
from helpers.widgets.strategy_explorer import StrategyExplorer
from helpers.widgets.tensor_split_explorer import TensorSplitExplorer
from helpers.widgets.timeline_explorer import TimelineExplorer
from helpers.widgets.trace_explorer import TraceExplorer
from helpers.widgets.zero_explorer import ZeroExplorer

__all__ = [
    "Clock", "CollectiveExplorer", "CourseMap", "DataParallelExplorer", "DialogueView", "DrillView",
    "FaultExplorer", "MemoryExplorer",
    "MeshExplorer", "MockView", "OverlapExplorer", "PipelineExplorer", "PrecisionExplorer", "ProgressView", "QuizView",
    "RoundView", "ScalingExplorer", "StrategyExplorer", "TensorSplitExplorer", "TimelineExplorer", "TraceExplorer",
    "ZeroExplorer", "course_map", "guess", "my_calibration", "my_guesses", "reveal", "votes",
]  # fmt: skip
