#!/usr/bin/env bash
#SBATCH --job-name=research_plugin
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --exclusive
#SBATCH --time=48:00:00
# Ray and the trainer in one Slurm job; everything ends with the job. Submit it from this folder:
#   VENV=/shared/venv sbatch slurm.sh +recipe=research_7b data.train_files=/shared/train.parquet ...
set -euo pipefail
# Slurm runs a copy of this file; the folder it was submitted from holds the others.
here=$SLURM_SUBMIT_DIR
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts[0]}
HEAD=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
CLUSTER_HOSTS=$(IFS=,; echo "${hosts[*]}"),$HEAD
NODES=${#hosts[@]}
export HEAD CLUSTER_HOSTS NODES
gpus=${SLURM_GPUS_ON_NODE:-8}
export RAY_ARGS="--num-gpus=$gpus --num-cpus=${SLURM_CPUS_PER_TASK:-$(nproc)} ${RAY_ARGS:-}"

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" env NODE_IP="$HEAD" bash "$here/node.sh" head &
if [ "$NODES" -gt 1 ]; then
    srun --overlap --nodes=$((NODES - 1)) --ntasks=$((NODES - 1)) --exclude="$head" \
        bash "$here/node.sh" worker "$HEAD" &
fi
# No GPU of its own: the trainer's driver leaves them to Ray's workers. When it ends, Slurm ends the other steps.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" --gpus=0 bash "$here/train.sh" "$@"
