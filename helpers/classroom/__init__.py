"""Class use: `python -m helpers grade PATH...` grades a folder of submissions; `--mine` shows your own progress.

Learners' code runs in a sandbox, a process with as few rights as this system can enforce. The grader's process never
parses, runs or unpickles anything that a learner wrote: it has files read in another sandbox, sends the inputs of a
task over a socket, reads tensors and plain data back, and judges them. A verdict that learners' code forges therefore
reaches nobody, and a file that brings its reader to fall costs one row of the class.

In the grader's process:

cli               the command line
submissions       which files were handed in, and by whom; their bytes
labs              what a lab asks, and a teacher's private checks
reading           has files read in a sandbox, and gives what was read as records
allowed           what submissions and sandboxes may use: modules of the course, Python modules, names
grade             grades one submission, and a class; the state file that lets a run resume
results           the records of what came out
reports           the HTML report, CSV files for gradebooks, the table for the terminal
plain_text        texts of learners, made safe to print
similarity        answers that differ only in names and order
viva              questions for an oral exam about each learner's own code

Around the sandbox and inside it:

sandbox           starts a sandbox, sends it requests, ends it
isolation         how strictly this system can isolate a sandbox; its limits
fork_server       the process that sandboxes are forked from, with torch imported
launcher          sets up the namespaces or user id of a sandbox
messages          plain data over the socket
reader            inside a sandbox that runs nothing: parses notebooks and progress files
cell_source       the limits within which it parses a cell
program, scan     a notebook parsed into statements; what in it a teacher should read
code_changes      small changes to an answer that an exam question asks about
sandbox_worker    inside the sandbox: runs cells and tasks
strip_answers     removes the right answers (judges, solutions) from the worker's memory, and lists the files to hide
guard             inside the sandbox: notes what honest answers do not do

It is a package of its own because it runs code of strangers, which no other package does. Begin with grade.py for the
grading, or with sandbox.py and launcher.py for the isolation.
"""
