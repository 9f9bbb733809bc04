#!/usr/bin/env bash
# Sets up the environment and runs every check and test. Further arguments go to pytest: bash tests/run.sh -m 'not e2e'
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/examples/cpu_env.sh"
setup_env cpu,test
cd "$root"
export OMP_NUM_THREADS=1

say "ruff and mypy"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy

say "pytest"
exec "$PYTHON" -m pytest "$@"
