#!/usr/bin/env bash
# The supervised side of R1-Searcher's comparison on two CPU cores: rollouts, the good ones of them, veRL's SFT trainer.
# Arguments go to the trainer: bash run.sh trainer.total_training_steps=2
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python}
export OMP_NUM_THREADS=1 VERL_PLATFORM=cpu VERL_FILE_LOGGER_PATH=runs/sft_tiny/metrics.jsonl
mkdir -p runs/sft_tiny
"$python" make_rollouts.py
"$python" -m research_plugin.cli data sft rollouts.jsonl --out sft.parquet
"$python" -m torch.distributed.run --standalone --nproc_per_node=1 \
    -m verl.trainer.sft_trainer --config-dir . +recipe=sft_tiny "$@"
