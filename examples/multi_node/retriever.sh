#!/usr/bin/env bash
#SBATCH --job-name=retriever
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=160G
#SBATCH --time=48:00:00
# The retriever as a job of its own, that outlives trainings: sbatch retriever.sh, or bash retriever.sh on a host of its own.
#   retriever.sh --recipe wiki18_e5_gpu corpus=/shared/wiki-18.jsonl index.path=/shared/e5_Flat.index
# Its URL goes to RETRIEVER_FILE once it answers queries; the file goes when the server ends.
set -euo pipefail
# Slurm runs a copy of this file; the folder it was submitted from holds the others.
here=${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
# shellcheck source=env.sh
. "$here/env.sh"
address=${RETRIEVER_ADDRESS:-$(hostname -f)}
port=${RETRIEVER_PORT:-8000}
mkdir -p "$(dirname "$RETRIEVER_FILE")"
trap 'rm -f "$RETRIEVER_FILE" "$RETRIEVER_FILE.new"; kill "$server" 2>/dev/null || true; wait "$server" || true' EXIT
trap 'exit 143' TERM
rm -f "$RETRIEVER_FILE" "$RETRIEVER_FILE.new"

research-plugin serve --host 0.0.0.0 --port "$port" --ready-file "$RETRIEVER_FILE.new" "$@" &
server=$!
until [ -s "$RETRIEVER_FILE.new" ]; do
    kill -0 "$server" || exit 1
    sleep 1
done
# The server names the address that it listens on; the others need one that they can reach.
printf '{"url": "http://%s:%s"}\n' "$address" "$port" >"$RETRIEVER_FILE"
wait "$server"
