#!/usr/bin/env bash
# Make the environments of a campaign on a machine with GPUs and without a network.
#
#   tools/gpu_campaign/environment.sh WHEELS VENV
#
# PYTHON (default: python3) has torch and what else is there already; WHEELS has the rest as wheels,
# and Horovod as an sdist or, built before, as nccl/*.whl and staged/*.whl. VENV gets Horovod over
# NCCL, VENV-staged Horovod that stages GPU tensors through the host. What is built is put into
# WHEELS, for the next time.
set -euo pipefail

wheels=$(realpath "$1")
venv=$(realpath -m "$2")
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH=$root OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

packages() { # FOLDER
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

environment() { # FOLDER
    [ -x "$1/bin/python" ] && return
    "$python" -m venv "$1"
    "$1/bin/pip" install -q --no-index --no-deps "$wheels"/*.whl
    # torch and its CUDA libraries are gigabytes: they are used where they are.
    "$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' \
        >"$(packages "$1")/shared.pth"
}

horovod() { # FOLDER KIND
    [ -d "$(packages "$1")/horovod" ] && return # PYTHON's own, which is seen too, is another one
    mkdir -p "$wheels/$2"
    if ! ls "$wheels/$2"/horovod-*.whl >/dev/null 2>&1; then
        HVDSCALE_WHEEL_DIR=$wheels/$2/built "$1/bin/python" -m harness build-horovod \
            --frameworks torch --gpu "$2" --mpi system --sdist "$wheels"/horovod-*.tar.gz
        cp "$wheels/$2"/built/*/horovod-*.whl "$wheels/$2/"
    fi
    "$1/bin/pip" install -q --no-index --no-deps --ignore-installed "$wheels/$2"/horovod-*.whl
}

made() { # FOLDER KIND
    environment "$1"
    horovod "$1" "$2"
}

made "$venv" nccl &
made "$venv-staged" staged
wait $!
"$venv/bin/python" -m harness doctor || true
