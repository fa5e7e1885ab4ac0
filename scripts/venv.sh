# Sourced by the other scripts: makes .venv where it is missing and installs packer with its pinned libraries.
# usage: make_venv                  what users need
#        make_venv dev              and what the tests need
#        pip_install VENV WHAT...   `pip install` in an environment. pip shows what it fetches and how large that is.
#
# PACKER_TORCH_INDEX=URL        an index that has torch for the CPU. Otherwise only the indexes that pip is set up for are
#                               asked, where torch for Linux is usually the one for CUDA.
# PACKER_INSTALL_MINUTES=60     after so many minutes pip is stopped

make_venv() {
    local python=${PYTHON:-python3} want stamp=.venv/.installed${1:+-$1}
    want=$(cat pyproject.toml scripts/constraints.txt | cksum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
        return
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "packer needs Python 3.10 or newer, and $python is not; set PYTHON=/path/to/python" >&2
        return 2
    fi
    if [ ! -x .venv/bin/python ]; then
        echo "making .venv"
        "$python" -m venv .venv || {
            echo "$python cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
            return 2
        }
    fi
    echo "installing packer and its libraries into .venv, once: 0.5 GB with torch for the CPU, 5.5 GB for CUDA"
    pip_install .venv --constraint scripts/constraints.txt --editable ".${1:+[$1]}" || return
    echo "$want" >"$stamp"
}

pip_install() {
    local python=$1/bin/python
    shift
    if "$python" -c 'import sys; from importlib.metadata import version as v; sys.exit(int(v("pip").split(".")[0]) >= 25)'; then
        echo "upgrading pip, because older ones search long, and in silence, for versions that fit together"
        _limited "$python" -m pip install --upgrade --constraint scripts/constraints.txt pip ||
            echo "pip could not be upgraded and stays as it is" >&2
    fi
    _limited "$python" -m pip install --disable-pip-version-check \
        ${PACKER_TORCH_INDEX:+--extra-index-url "$PACKER_TORCH_INDEX"} "$@"
}

_limited() {  # not by `timeout`, which macOS lacks
    "$1" -c '
import signal, subprocess, sys

minutes, *command = sys.argv[1:]
process = subprocess.Popen(command)
try:
    sys.exit(process.wait(60 * float(minutes)))
except subprocess.TimeoutExpired:
    process.send_signal(signal.SIGINT)  # pip then removes its temporary files
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()  # below nohup a process ignores SIGINT
        process.wait()
    sys.exit(f"pip was stopped after {minutes} minutes (PACKER_INSTALL_MINUTES). Its last lines above say whether it was "
             "still fetching, which goes on where it was if you try again, or looking for versions that fit together")
' "${PACKER_INSTALL_MINUTES:-60}" "$@"
}
