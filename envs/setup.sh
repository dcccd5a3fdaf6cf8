#!/usr/bin/env bash
# Makes .venv with guiloop's locked packages and finds (or installs) a browser. Repeating it is cheap.
#   bash envs/setup.sh              the workflow: rollouts with hosted models, the browser world, recorded actions
#   bash envs/setup.sh test         and what the tests need
#   bash envs/setup.sh images …     and the named extras of pyproject.toml
set -euo pipefail
cd "$(dirname "$0")/.."

python=""
for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "guiloop needs Python 3.11 or newer; found: $(python3 --version 2>&1 || echo none)." >&2
    echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3 bash envs/setup.sh" >&2
    exit 1
fi

if [ ! -x .venv/bin/python ]; then
    if ! "$python" -m venv .venv 2>/dev/null; then
        rm -rf .venv
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
            "$python" -m venv .venv
        else
            echo "This Python cannot make virtual environments. Debian, Ubuntu: apt-get install python3-venv" >&2
            exit 1
        fi
    fi
fi

# The lock is a constraints file: it says which version of each package, the extras say which packages.
extras=$(IFS=,; echo "$*")
want="$(cat envs/lock.txt pyproject.toml | sha256sum | cut -c1-16) $extras"
stamp=.venv/guiloop-setup
if ! grep -qxF "$want" "$stamp" 2>/dev/null; then
    # Without byte code every process would compile torch and transformers anew; Python writes it on first import.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
        --constraint envs/lock.txt --editable ".${extras:+[$extras]}"
    echo "$want" >>"$stamp"
fi
.venv/bin/python -m workflow_scripts.browser.find --install

# The tests run a real SLURM on this machine, where it can be installed; elsewhere they say that they were skipped.
case " $* " in *" test "*)
    if ! command -v slurmctld >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            slurmctld slurmd slurm-client munge >/dev/null ||
            echo "SLURM could not be installed; its tests will be skipped." >&2
    fi
    ;;
esac
