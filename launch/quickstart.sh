#!/usr/bin/env bash
# From a fresh clone to a report on the CPU: a small Llama under FSDP, HSDP, tensor, pipeline and 3-D layouts, on the same data.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

environment
cd "$repository"
export OMP_NUM_THREADS=1 # eight ranks share the machine's cores
python=$venv/bin/python
corpus=data/python-library

say "preparing $corpus (it is kept, and only made where it is not whole)"
"$python" -m torchlayout data prepare --python-library --out "$corpus"

say "comparing five layouts on 8 ranks"
"$python" -m torchlayout compare configs/compare/quickstart.toml --overwrite
say "losses and digests of the five runs"
"$python" -m torchlayout.train.summary studies/quickstart/*/repeat_1
printf '\nTo look at it: open %s, or\n    %s --logdir %s\n' "$repository/studies/quickstart/report.html" \
    "$venv/bin/tensorboard" "$repository/studies/quickstart"
