#!/usr/bin/env bash
# A Ray cluster on hosts that ssh reaches without a password; this folder has the same path on all of them.
#   HOSTS="10.0.0.1 10.0.0.2" ssh.sh start          the first host is the head
#   HOSTS=... ssh.sh stop                            ends what start began, by process id, and nothing else
# Then, on the head: HEAD=10.0.0.1 NODES=2 bash train.sh +recipe=research_7b ...
# ENV: more variables for every node, such as ENV="VENV=/shared/venv RETRIEVER_TOKEN=...". RUN: logs and process ids.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -r -a hosts <<<"${HOSTS:?addresses of the hosts, the head first}"
run=${RUN:-/tmp/research_plugin_ray_$USER}
ssh=${SSH:-ssh -o BatchMode=yes}

case "${1:-}" in
start)
    for number in "${!hosts[@]}"; do
        role="head"
        [ "$number" = 0 ] || role="worker ${hosts[0]}"
        # In a session of its own, so that it outlives this connection and ends as one group.
        # shellcheck disable=SC2029,SC2086
        $ssh "${hosts[$number]}" "mkdir -p $run && cd $here && { export NODE_IP=${hosts[$number]} CLUSTER_HOSTS=${HOSTS// /,} ${ENV:-}; \
            setsid nohup bash node.sh $role >$run/$number.log 2>&1 </dev/null & echo \$! >$run/$number.pid; }"
        echo "${hosts[$number]}: $role, log in $run/$number.log there"
    done
    ;;
stop)
    for ((number = ${#hosts[@]} - 1; number >= 0; number--)); do
        # shellcheck disable=SC2029,SC2086
        $ssh "${hosts[$number]}" "if [ -e $run/$number.pid ]; then pid=\$(cat $run/$number.pid); \
            kill -TERM \$pid 2>/dev/null; for _ in \$(seq 30); do kill -0 -- -\$pid 2>/dev/null || break; sleep 1; done; \
            kill -KILL -- -\$pid 2>/dev/null; rm -f $run/$number.pid; fi; true"
    done
    ;;
*)
    echo "HOSTS=... ssh.sh start | stop" >&2
    exit 2
    ;;
esac
