"""Class use: `python -m helpers grade PATH...` grades a folder of submissions; `--mine` shows what you have done.

Learners' code runs in a sandbox S. The judge G never runs or unpickles anything of theirs: it sends a task's inputs
over a socket, reads tensors and plain data back, and compares. So a forged verdict has nowhere to stand.

    submissions, labs   which files there are, and what the lab asks
    program             what a notebook defines, statement by statement; parsed, never run
    scan, reader, names what in it a teacher should read, by rules and needed.yaml; flags, flagged: how that is kept
    launch, rungs       the sandbox, as strict as the system allows
    nursery, forked     where sandboxes are forked from, torch imported; and the grader's side of it
    sandbox, watch      G's side of S: questions, limits, the end
    student, guard      inside S: cells, ranks, hooks that note
    stripped            what is taken out of S before it starts: whatever answers
    wire                bytes between the two, believed by neither
    one, folder         one submission; all of them
    results, state      what came out; kept on disk, so that a run resumes
    flagged, attempts   what of a submission to read; how often its author tried the checks
    alike               answers that are the same but for names and order
    tables, page        CSV for gradebooks; the report in HTML, its table for the terminal (terminal)
    viva, changes       three questions to each about their own code: small changes, run; the pages (viva_page)
"""
