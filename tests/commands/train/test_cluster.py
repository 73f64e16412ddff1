"""The files of cluster/, as far as they go without a cluster: local agents are the nodes, and small programs SLURM."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.observe.torchrun import free_port

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = ROOT / "cluster"
KNOWN = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "requeue", "signal"}
KNOWN |= {"open-mode", "output"}
SLURM = {
    "srun": """#!/bin/bash
for node in $(seq 0 $((SLURM_JOB_NUM_NODES - 1))); do
    SLURM_NODEID=$node "$@" & echo $! >>"$FAKE/agents"
done
wait
""",
    "scancel": '#!/bin/bash\n[ "$*" = "--signal=TERM 77" ] && kill -TERM $(cat "$FAKE/agents")\n',
    "scontrol": """#!/bin/bash
if [ "$*" = "show hostnames here[0-1]" ]; then printf '127.0.0.1\\n127.0.0.2\\n'; else echo "$*" >>"$FAKE/told"; fi
""",
}


@pytest.mark.parametrize("name", ["train.sbatch", "two_nodes.sh"])
def test_bash_can_read_the_scripts(name):
    assert not subprocess.run(["bash", "-n", CLUSTER / name], capture_output=True, text=True, check=True).stderr
    assert os.access(CLUSTER / name, os.X_OK)


def options() -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", (CLUSTER / "train.sbatch").read_text(), re.MULTILINE)
    return dict(found)


def test_sbatch_gets_options_that_it_knows_and_time_enough_to_save():
    text = (CLUSTER / "train.sbatch").read_text()
    assert set(options()) == KNOWN
    assert text.count("\n#SBATCH") == len(KNOWN), "sbatch reads them before the first command"
    assert text.index("#SBATCH --output") < text.index("set -u")
    to, seconds = re.fullmatch(r"B:(\w+)@(\d+)", options()["signal"]).groups()
    grace = int(re.search(r"GRACE:-(\d+)", text)[1])
    assert to == "TERM" and grace + 5 < int(seconds), "torchrun's own limit comes 5 s after the ranks'"
    assert options()["ntasks-per-node"] == "1", "one agent on each node"


@pytest.fixture
def slurm(tmp_path):
    """slurm() submits train.sbatch with two nodes of one rank each: the running script."""
    for name, text in SLURM.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    started = []
    there = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "here[0-1]", "FAKE": str(tmp_path)}
    there |= {"SLURM_SUBMIT_DIR": str(ROOT), "RANKS_PER_NODE": "1", "FOLDER": str(tmp_path / "run"), "GRACE": "60"}
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])

    def submit(line: str) -> subprocess.Popen:
        (tmp_path / "agents").unlink(missing_ok=True)
        env = os.environ | there | {"PATH": path, "PORT": str(free_port()), "PYTHONUNBUFFERED": "1"}
        command = ["bash", CLUSTER / "train.sbatch", *line.split()]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, stderr=-2, text=True, bufsize=1))
        return started[-1]

    yield submit
    for job in started:
        if job.poll() is None:
            for pid in (tmp_path / "agents").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            job.kill()
        job.wait()
        job.stdout.close()


@pytest.mark.slow
def test_a_job_whose_time_is_over_saves_goes_back_into_the_queue_and_goes_on(slurm, train, ranks, losses, tmp_path):
    line = "--size tiny --batch 4 --save-every 1000 --steps"
    job, said = slurm(f"{line} 99999"), ""
    for text in job.stdout:
        said += text
        if text.lstrip().startswith("1/99999"):
            job.send_signal(signal.SIGTERM)
    assert job.wait() == 0 and (tmp_path / "told").read_text() == "requeue 77\n"
    assert "SIGTERM: stopping after this step, and saving, within 60 s." in said and "train --resume" in said
    (saved,) = (tmp_path / "run").glob("step_*/manifest.json")
    done = int(saved.parent.name.removeprefix("step_"))
    then = slurm(f"{line} {done + 2}")
    rest = then.communicate()[0]
    assert then.returncode == 0 and (tmp_path / "told").read_text() == "requeue 77\n"
    whole = losses(train(ranks[:2], f"--plan dp=2 --batch 4 --save whole --steps {done + 2}")[1])
    assert list(losses(rest)) == [done + 1, done + 2] and losses(rest)[done + 2] == whole[done + 2]


def test_the_dockerfile_copies_what_is_there_and_starts_what_can_be_started():
    text = re.sub(r"\\\n", " ", (CLUSTER / "Dockerfile").read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert [word for word, _ in lines][:2] == ["ARG", "FROM"] and ["FROM", "${BASE}"] in lines
    for word, rest in lines:
        if word == "COPY":
            assert all((ROOT / name).exists() for name in shlex.split(rest)[:-1])
    from helpers.commands.train.options import parse_options

    (command,) = (eval(rest) for word, rest in lines if word == "CMD")
    assert parse_options(command[1:]).go_on and command[0] == "train"
