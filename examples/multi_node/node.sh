#!/usr/bin/env bash
# One Ray node in the foreground: it ends with this process, and nothing else on the machine is touched.
#   node.sh head | node.sh worker HEAD_ADDRESS
# NODE_IP: this node's address in the network that the nodes share; without it Ray guesses, and of several networks may
# take the wrong one. RAY_ARGS: more arguments of `ray start`, such as --num-gpus=8.
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
read -r -a more <<<"--disable-usage-stats ${NODE_IP:+--node-ip-address=$NODE_IP} ${RAY_ARGS:-}"

case "${1:-}" in
head)
    if [ ! -s "$RAY_AUTH_TOKEN_PATH" ]; then
        (umask 077 && mkdir -p "$(dirname "$RAY_AUTH_TOKEN_PATH")" &&
            python -c 'import secrets; print(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH")
    fi
    exec ray start --head --block --port="$RAY_PORT" --include-dashboard=false "${more[@]}"
    ;;
worker)
    head=${2:?node.sh worker HEAD_ADDRESS}
    for _ in $(seq 60); do # the head may still be starting
        if timeout 2 bash -c "exec 3<>/dev/tcp/$head/$RAY_PORT" 2>/dev/null; then
            exec ray start --block --address="$head:$RAY_PORT" "${more[@]}"
        fi
        sleep 2
    done
    echo "no Ray head answers at $head:$RAY_PORT" >&2
    exit 1
    ;;
*)
    echo "node.sh head | node.sh worker HEAD_ADDRESS" >&2
    exit 2
    ;;
esac
