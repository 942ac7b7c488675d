#!/usr/bin/env bash
# Lint, types and tests, in the environment of the quickstart.
#
#   ./launch/test.sh                 everything
#   ./launch/test.sh tests/config    what pytest is given, after lint and types
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

environment
cd "$repository"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python=$venv/bin/python

say "ruff check"
"$python" -m ruff check .
say "ruff format --check"
"$python" -m ruff format --check .
say "mypy"
"$python" -m mypy
say "pytest"
exec "$python" -m pytest -q --durations=10 "$@"
