#!/usr/bin/env bash
# Starts training on one node, or on each of several.
#
#   ./launch/torchrun.sh configs/llama3-8b_8gpu.toml [--layout LABEL] [--set KEY=VALUE]...
#
# On each node of several (NODE_RANK is the node's own, from 0):
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=first-node ./launch/torchrun.sh configs/llama-13b_64gpu.toml
#
# NPROC_PER_NODE   ranks on this node       (default: its GPUs; without a GPU its cores)
# NNODES           nodes                    (default: 1)
# NODE_RANK        number of this node      (default: 0)
# MASTER_ADDR      name of node 0           (needed with several nodes)
# MASTER_PORT      a free port on node 0    (default: 29500 with several nodes, any free one with one)
# MAX_RESTARTS     how often torchrun starts ranks anew after one has died (default: 0; on one node)
# PYTHON           the Python to use        (default: that of .venv, else python3)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ $# -gt 0 ] || fail "no configuration was given; write $0 CONFIG [--layout LABEL] [--set KEY=VALUE]..."

# whole NAME VALUE LOWEST HIGHEST
whole() {
    [[ $2 =~ ^[0-9]{1,9}$ ]] && ((10#$2 >= $3 && 10#$2 <= $4)) ||
        fail "$1 = '$2' cannot be; legal are whole numbers from $3 to $4"
}

nodes=${NNODES:-1}
node=${NODE_RANK:-0}
restarts=${MAX_RESTARTS:-0}
whole NNODES "$nodes" 1 100000
whole MAX_RESTARTS "$restarts" 0 100000
whole NODE_RANK "$node" 0 $((10#$nodes - 1))
[ -z "${NPROC_PER_NODE:-}" ] || whole NPROC_PER_NODE "$NPROC_PER_NODE" 1 4096
[ -z "${MASTER_PORT:-}" ] || whole MASTER_PORT "$MASTER_PORT" 1 65535
if ((10#$nodes > 1)); then
    [ -n "${NODE_RANK:-}" ] || fail "NNODES = $nodes needs NODE_RANK, the number of this node from 0 to $((10#$nodes - 1))"
    ((10#$restarts == 0)) || fail "MAX_RESTARTS = $restarts works on one node; on several start again, the run goes on"
    [ -n "${MASTER_ADDR:-}" ] || fail "NNODES = $nodes needs MASTER_ADDR, the name or address of node 0"
fi

if [ -n "${PYTHON:-}" ]; then
    python=$PYTHON
elif [ -x "$venv/bin/python" ]; then
    python=$venv/bin/python
else
    python=python3
fi
command -v "$python" >/dev/null || fail "PYTHON = '$python' is no program; name a Python that has torchlayout installed"

# GPUs as torch sees them (CUDA_VISIBLE_DEVICES included), else the cores that this shell may use.
count_devices='
import os
try:
    import torch
    import torchlayout
except ImportError as error:
    raise SystemExit(f"{error}; install torchlayout first, for example by ./launch/quickstart.sh")
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(torch.accelerator.device_count() or cores)
'
ranks=${NPROC_PER_NODE:-$("$python" -c "$count_devices")}

if ((10#$nodes > 1)); then
    where=(--nnodes "$nodes" --node-rank "$node" --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}")
elif [ -n "${MASTER_PORT:-}" ]; then
    where=(--nnodes 1 --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "$MASTER_PORT")
else
    where=(--standalone)
fi

# Several ranks on one node must not each start a thread for every core.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# A signal goes on to the ranks, which save and end; torchrun kills them where that takes longer than the timeout.
export PET_SIGNALS_TO_HANDLE=${PET_SIGNALS_TO_HANDLE:-SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1}
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}
exec "$python" -m torch.distributed.run "${where[@]}" --nproc-per-node "$ranks" --max-restarts "$restarts" \
    -m torchlayout.train "$@"
