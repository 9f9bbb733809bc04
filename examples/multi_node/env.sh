# Sourced on every node before Ray starts there: Ray's workers get their environment from `ray start` on their node, not
# from the trainer. Edit it, or set the variables before. README.md says what each is for.
# shellcheck shell=bash

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -n "${VENV:-}" ]; then
    # shellcheck disable=SC1091
    . "$VENV/bin/activate"
fi

# A folder that all nodes see, and nobody else can read: Ray's token and the retriever's URL lie in it.
export SHARED=${SHARED:-$HOME/.research_plugin}
export RAY_PORT=${RAY_PORT:-6379} # outside 10001 to 19999, where Ray's workers listen
# Ray 2.60's head asks for a token; its workers and the trainer must be told to send one. Older ones ignore this.
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
export RAY_AUTH_TOKEN_PATH=${RAY_AUTH_TOKEN_PATH:-$SHARED/ray_token}
export RETRIEVER_FILE=${RETRIEVER_FILE:-$SHARED/retriever.json}

# The plugin is an entry point of veRL; "auto" is veRL's default, and "none" would turn it off in silence.
export VERL_USE_EXTERNAL_PLUGINS=${VERL_USE_EXTERNAL_PLUGINS:-auto}
# Models are read by every node: one shared folder, filled before, is read instead of downloaded N times.
export HF_HOME=${HF_HOME:-$HOME/.cache/huggingface}
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
# Requests inside the cluster must not go through a web proxy. Names and addresses, separated by commas.
export no_proxy=${no_proxy:+$no_proxy,}localhost,127.0.0.1${CLUSTER_HOSTS:+,$CLUSTER_HOSTS}
export NO_PROXY=$no_proxy
# Modules of your own (custom.protocol=my_module:NAME, a reward by pkg://) must be importable on every node.
export PYTHONPATH=${OWN_MODULES:+$OWN_MODULES:}${PYTHONPATH:-}
# Passed on as they are, if set: the bearer token that search.token_env names (RETRIEVER_TOKEN), WANDB_API_KEY,
# NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (the network between nodes, where there are several), VERL_*, VLLM_*.
