#!/usr/bin/env bash
# A checkpoint as a Hugging Face folder, to serve or to train on from.
#   export.sh CHECKPOINTS/global_step_150 /shared/research_7b_step150
#   vllm serve /shared/research_7b_step150 --served-model-name research_7b
set -euo pipefail
step=${1:?folder of a checkpoint, global_step_N}
target=${2:?folder to write}
actor=$step/actor
if [ -e "$actor/fsdp_config.json" ]; then
    backend=fsdp ready=$actor/huggingface
elif [ -d "$actor/model" ] || [ -d "$actor/dist_ckpt" ]; then
    backend=megatron ready=$actor/model/huggingface
else
    echo "$actor is no checkpoint of veRL's FSDP or Megatron engine" >&2
    exit 1
fi
if [ -n "$(find "$ready" -name '*.safetensors' 2>/dev/null)" ]; then
    # save_contents had hf_model: the weights lie there already.
    mkdir -p "$target"
    cp -r "$ready/." "$target/"
else
    "${PYTHON:-python}" -m verl.model_merger merge --backend "$backend" --local_dir "$actor" --target_dir "$target"
fi
[ -e "$target/generation_config.json" ] ||
    echo "warning: $target has no generation_config.json; copy the base model's, or its end tokens are lost" >&2
echo "$target"
