# Sourced by the other scripts: makes .venv where it is missing and installs packer with its pinned libraries.
# usage: make_venv            what users need
#        make_venv dev        and what the tests need

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
    echo "installing packer and its libraries into .venv (a minute or two, once)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint scripts/constraints.txt --editable ".${1:+[$1]}"
    echo "$want" >"$stamp"
}
