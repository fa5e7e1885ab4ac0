#!/usr/bin/env bash
# Tests with the real trainers, in an environment of their own, .venv-integrations (some gigabytes, installed once). A library
# that cannot be installed is reported, and its tests skip. Arguments go to pytest: scripts/test_integrations.sh -k lightning
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-integrations
pins=scripts/constraints-integrations.txt
libraries=(torchvision lightning accelerate torchdata transformers ultralytics torchcodec nvidia-dali-cuda120 albumentations cloudpickle datumaro)

install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$pins" "$@"
}

want=$(cat pyproject.toml "$pins" "$0" | cksum)
if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$want" ]; then
    echo "installing the trainers into $venv (some minutes, once)"
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    install torch pytest hypothesis --editable .
    missing=0
    for library in "${libraries[@]}"; do
        install "$library" || { missing=1; echo "$library was not installed: its tests skip"; }
    done
    [ "$missing" = 1 ] || echo "$want" >"$venv/.installed"
fi
YOLO_OFFLINE=true "$venv/bin/python" -m pytest -rs tests/integration "$@"
