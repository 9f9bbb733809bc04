#!/usr/bin/env bash
# The trainer, on the head node once Ray runs: waits for the nodes and the retriever, then starts veRL.
#   HEAD=ADDRESS NODES=8 train.sh +recipe=research_7b data.train_files=/shared/train.parquet ...
# Run it again after an interruption: veRL goes on from its last checkpoint (trainer.resume_mode=auto).
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
export RAY_ADDRESS=${HEAD:?address of the head node}:$RAY_PORT
: "${NODES:?number of nodes}"

python "$HERE/check_nodes.py" "$NODES" "${WAIT:-300}"
for _ in $(seq "${WAIT:-300}"); do
    [ -s "$RETRIEVER_FILE" ] && break
    sleep 1
done
[ -s "$RETRIEVER_FILE" ] || {
    echo "no $RETRIEVER_FILE: start the retriever (retriever.sh), or set RETRIEVER_FILE to where it was told to write" >&2
    exit 1
}
url=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$RETRIEVER_FILE")
exec python -m verl.trainer.main_ppo "trainer.nnodes=$NODES" \
    "actor_rollout_ref.rollout.custom.search.url=$url" "$@"
