"""Provides every widget of the course: explorers with dials, interview views, guesses, and maps of the progress.

Each also works without a front end, and a saved notebook keeps a picture or text of it. The explorers are plain Python:
`controls.py` has their dials, `explorer.py` their base classes, and `explorer_view.py` shows them in a notebook, with
ipywidgets. Everything else here is an ipywidget: `view.py` has what all of these share, and `talk_view.py` the base
class of the interview views.

Clock                 counts down against a limit in the browser, also while the kernel works
CourseMap             what course_map returns: chapters, stations, what is passed and which cards are due
CollectiveExplorer    any collective and algorithm, step by step: which rank has which chunk, bytes and seconds so far
DataParallelExplorer  one step of nn.DataParallel: devices, the master's link, parameters, Python's lock
DialogueView          a worked interview, turn by turn, in which the learner answers before the candidate does
DrillView             a function to write in 15 minutes, with a clock; helpers.grading.drill(key) brings the lab's check
ExpertsExplorer       an expert layer: load of each expert, dropped rows, bytes with and without deduplication
FaultExplorer         a week of a job that fails: nodes, rate, save, repair, interval; how often it should save
LongContextExplorer   context parallelism by a ring, an all-gather and Ulysses: seconds, bytes sent and held, imbalance
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

Begin with controls.py, and then read explorer.py.
"""

from helpers import import_on_demand

# Explorers are plain Python. Whoever needs only them, such as a web page, has no ipywidgets, which the views import.
__getattr__ = import_on_demand(
    __name__,
    {
        "clock": ("Clock",),
        "collective_explorer": ("CollectiveExplorer",),
        "data_parallel_explorer": ("DataParallelExplorer", "OverlapExplorer"),
        "experts_explorer": ("ExpertsExplorer",),
        "fault_explorer": ("FaultExplorer",),
        "guess_results": ("my_calibration", "my_guesses", "votes"),
        "guess_view": ("guess",),
        "interview_views": ("DialogueView", "DrillView", "MockView", "QuizView", "RoundView"),
        "long_context_explorer": ("LongContextExplorer",),
        "memory_explorer": ("MemoryExplorer",),
        "mesh_explorer": ("MeshExplorer",),
        "pipeline_explorer": ("PipelineExplorer",),
        "precision_explorer": ("PrecisionExplorer",),
        "progress_view": ("CourseMap", "ProgressView", "course_map"),
        "reveal_view": ("reveal",),
        "scaling_explorer": ("ScalingExplorer",),
        "strategy_explorer": ("StrategyExplorer",),
        "tensor_split_explorer": ("TensorSplitExplorer",),
        "timeline_explorer": ("TimelineExplorer",),
        "trace_explorer": ("TraceExplorer",),
        "zero_explorer": ("ZeroExplorer",),
    },
)

__all__ = [
    "Clock", "CollectiveExplorer", "CourseMap", "DataParallelExplorer", "DialogueView", "DrillView",
    "ExpertsExplorer", "FaultExplorer", "LongContextExplorer", "MemoryExplorer",
    "MeshExplorer", "MockView", "OverlapExplorer", "PipelineExplorer", "PrecisionExplorer", "ProgressView", "QuizView",
    "RoundView", "ScalingExplorer", "StrategyExplorer", "TensorSplitExplorer", "TimelineExplorer", "TraceExplorer",
    "ZeroExplorer", "course_map", "guess", "my_calibration", "my_guesses", "reveal", "votes",
]  # fmt: skip
