#!/usr/bin/env bash
# From a fresh clone to two finished runs on the CPU: a small Llama under FSDP and under a 3-D layout, on the same data.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

environment
cd "$repository"
export OMP_NUM_THREADS=1 # eight ranks share the machine's cores
python=$venv/bin/python
corpus=data/python-library
runs=runs/quickstart
layouts=(fsdp8 pp2-fsdp2-tp2+sp)

say "preparing $corpus (it is kept, and only made where it is not whole)"
"$python" -m torchlayout data prepare --python-library --out "$corpus"

rm -rf "$runs"
finished=()
for layout in "${layouts[@]}"; do
    say "training under $layout on 8 ranks"
    "$python" -m torch.distributed.run --standalone --nproc-per-node 8 -m torchlayout.train \
        configs/quickstart.toml --layout "$layout" --set run.directory="$runs" --set run.name="$layout"
    finished+=("$runs/$layout")
done

say "the two runs"
"$python" -m torchlayout.train.summary "${finished[@]}"
printf '\nTo look at them:\n    %s --logdir %s\n' "$venv/bin/tensorboard" "$repository/$runs"
