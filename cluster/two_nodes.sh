#!/bin/bash
# One node's part of a run over two nodes or more. Type it on each of them; the run starts when all are there:
#
#     cluster/two_nodes.sh 0 FIRST_NODE --plan dp=16 --save /shared/run     on FIRST_NODE itself
#     cluster/two_nodes.sh 1 FIRST_NODE --plan dp=16 --save /shared/run     on the second
#
# The number of this node, the name of the first, then options of `python -m helpers train`. /shared: a file system that all
# nodes see. After an end of any kind type the same lines again: the run goes on from its newest checkpoint.
# train.sbatch does all of that through SLURM.
set -eu
node=$1 first=$2
shift 2

# The first node holds the store at which the nodes meet, and says so: by its name alone torchrun may not recognize itself,
# and two agents on one machine would both try. For its ranks each attempt gets a new store: in the last one's stale keys wait.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
is_host=$((node == 0))

exec torchrun \
    --nnodes="${NODES:-2}" \
    --nproc-per-node="${RANKS_PER_NODE:-8}" \
    --max-restarts="${MAX_RESTARTS:-3}" \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$first:${PORT:-29400}" \
    --rdzv-conf="is_host=$is_host" \
    --rdzv-id="${RUN_ID:-rank-by-rank}" \
    --shutdown-timeout="$((${GRACE:-25} + 5))" \
    -m helpers train --go-on --grace "${GRACE:-25}" "$@"
