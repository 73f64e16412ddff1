"""Holds what each chapter runs and draws: one file per chapter, named like its topic, imported by that notebook only.

Chapters use everything below them: the strategies, the instruments of `observe`, predictions, pictures and widgets.
What two chapters need moves down, for example to `observe/training.py`. Some chapters have a second file:

    first_script             the smallest program for torchrun, which chapter 00 (start_here) shows and runs
    amp_training             the trainings of chapter 04 (amp)
    composing_cells          what the cells of chapter 09 (composing) draw
    ddp_cells                what the cells of chapter 03 (ddp) reveal
    fault_tolerance_cells    what the cells of chapter 12 (fault_tolerance) reveal
    silent_corruption        a GPU that computes a wrong number, for chapter 12 (fault_tolerance)
    four_verbs               DataParallel in 25 lines, which chapter 02 (data_parallel) shows and runs
    nccl_programs            the programs of chapter 01 that NCCL may not run
    tensor_parallel_timing   the emulated durations of chapter 07 (tensor_parallel)
    torch_trainer            PyTorch's own parts as a trainer, for chapter 09 (composing)
    myths, myths_simulated   widespread claims that a run refutes, one function each
    myths_long_context       such claims about context parallelism
    myths_experts            such claims about mixtures of experts
    strategies               runs each core file that the page notebooks/strategies.ipynb shows
    sources                  the code of old articles that the page notebooks/sources.ipynb runs
    take_it_to_work          the folder and the terminal of the page notebooks/take_it_to_work.ipynb

Begin with the file of the chapter that you know best, next to its notebook.

A guess is a question that a notebook asks before it shows a result: `guess(question, choices=…, key="03.weights")`.
Later the notebook calls a function of this package and passes what it found to `reveal("03.weights", …)`. The file
helpers/learner/guesses/03_ddp.yaml declares the right answer, and `reveal` compares the two. Therefore a function whose
docstring names a guess returns, as its first value or at the place that the docstring says, one of the choices of that
guess, word for word. Where a run finds something else than the declared answer, the function returns the choice that
fits what was found; where it does not tell all of these apart, one wrong choice stands for all, so that `reveal` shows
that the run and the declared answer differ. Nothing here is translated: the choices are in English, and the yaml file
has the Chinese.

Nothing else imports a chapter. The interview (helpers/interview) has a list of myths, which names functions of
`myths.py`, `myths_simulated.py`, `myths_long_context.py` and `myths_experts.py` by their dotted path.
"""
