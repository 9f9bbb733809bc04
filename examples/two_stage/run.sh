#!/usr/bin/env bash
# Two-stage training: stage 2 starts from stage 1's last checkpoint, by one setting (actor_rollout_ref.model.path).
#
# R1-Searcher, both stages:
#   STAGE1_ARGS="data.train_files=/data/r1_searcher/stage1.parquet" \
#   STAGE2_ARGS="data.train_files=/data/r1_searcher/stage2.parquet" bash examples/two_stage/run.sh \
#     actor_rollout_ref.rollout.custom.search.url=http://RETRIEVER:8000 data.val_files=/data/r1_searcher/val.parquet
# The same machinery on two CPU cores, with the tiny model (docs/recipes.md has the numbers):
#   cd examples/two_stage && python shy_model.py
#   STAGE1=tiny_stage1 STAGE2=tiny_stage2 bash run.sh --config-dir .
#
# Arguments go to both stages, Hydra's options first; STAGE1_ARGS and STAGE2_ARGS to one of them. RUN_DIR holds what
# comes out. Run it again after an interruption: a stage that is through is skipped, another goes on from its last
# checkpoint.
set -euo pipefail
RUN_DIR=$(realpath -m "${RUN_DIR:-runs/two_stage}")

run_stage() {  # name, recipe, arguments
    local folder=$RUN_DIR/$1 recipe=$2
    shift 2
    [ -e "$folder/finished" ] && return
    mkdir -p "$folder"
    echo "== $recipe in $folder"
    "${PYTHON:-python}" -m verl.trainer.main_ppo "$@" "+recipe=$recipe" trainer.default_local_dir="$folder"
    touch "$folder/finished"
}

# Split at blanks: several overrides are allowed.
# shellcheck disable=SC2086
run_stage stage1 "${STAGE1:-r1_searcher_stage1_7b}" "$@" ${STAGE1_ARGS:-}

step=$(cat "$RUN_DIR/stage1/latest_checkpointed_iteration.txt")
# FSDP saves actor/huggingface, Megatron actor/model/huggingface.
model=$(find "$RUN_DIR/stage1/global_step_$step/actor" -type d -name huggingface | head -n 1)
[ -n "$(find "$model" -name '*.safetensors')" ] || {
    echo "$model holds no weights; stage 1 needs hf_model in actor_rollout_ref.actor.checkpoint.save_contents" >&2
    exit 1
}

# shellcheck disable=SC2086
run_stage stage2 "${STAGE2:-r1_searcher_stage2_7b}" "$@" ${STAGE2_ARGS:-} actor_rollout_ref.model.path="$model"
