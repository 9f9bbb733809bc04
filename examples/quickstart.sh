#!/usr/bin/env bash
# From a clean clone to a trained model: sets up an environment, starts the retriever server, and runs the real main
# job - stock veRL, Ray, FSDP2, vLLM - on the embedded tiny world. Five to ten minutes on two CPU cores, install included.
# Further arguments are Hydra overrides: bash examples/quickstart.sh trainer.total_training_steps=4
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/examples/cpu_env.sh"
setup_env cpu

run=${RUN_DIR:-$root/runs/quickstart/$(date +%Y-%m-%d_%H-%M-%S)}
mkdir -p "$run"
corpus=$("$PYTHON" -c 'import research_plugin.data.tiny_files as t; print(t.tiny_dir() / "corpus.jsonl")')

say "starting the retriever server"
"$VENV/bin/research-plugin" serve --corpus "$corpus" --port 0 --ready-file "$run/retriever.json" \
    --exit-with-parent $$ >"$run/retriever.log" 2>&1 &
retriever=$!
trap 'kill "$retriever" 2>/dev/null || true' EXIT
for _ in $(seq 300); do
    [ -e "$run/retriever.json" ] && break
    kill -0 "$retriever" 2>/dev/null || { cat "$run/retriever.log" >&2; fail "the retriever server ended"; }
    sleep 0.2
done
[ -e "$run/retriever.json" ] || fail "the retriever server was not ready in 60 s; see $run/retriever.log"
url=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$run/retriever.json")
echo "retriever at $url"

say "python -m verl.trainer.main_ppo +recipe=research_tiny   (whole output: $run/train.log)"
cd "$run"
timeout --foreground --kill-after=60 --signal=INT 1800 "$PYTHON" -u -m verl.trainer.main_ppo +recipe=research_tiny \
    actor_rollout_ref.rollout.custom.search.url="$url" trainer.default_local_dir="$run" hydra.run.dir="$run/hydra" "$@" 2>&1 |
    "$PYTHON" -m research_plugin.reports.follow "$run/train.log"
