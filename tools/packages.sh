#!/bin/sh
# Install hvdscale and its pinned packages into the virtual environment $1. Where pip's own sources
# have no CPU build of torch, it is looked for in the index $2 (empty: take what pip finds, which
# from PyPI is a CUDA build of several GB).
set -eu
venv=$1
torch_index=$2
python=$venv/bin/python
tag=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
constraints=constraints/py$tag.txt
torch_version=$(sed -n 's/^torch==//p' "$constraints")

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONWARNINGS=ignore
if [ -t 1 ]; then quiet=''; else quiet='-q'; fi
# shellcheck disable=SC2086  # $quiet is one word or none
pip() { command=$1; shift; "$python" -m pip "$command" $quiet -c "$constraints" "$@"; }

echo "installing Python packages into $venv (a few minutes, about 3 GB)"
pip install pip setuptools wheel packaging

cpu="torch==$torch_version+cpu"
if "$python" -m pip install -q --dry-run --no-deps "$cpu" >/dev/null 2>&1; then
    pip install "$cpu"
elif [ -n "$torch_index" ] && "$python" -m pip download -q --no-deps -d "$venv/.torch" \
    --retries 1 --timeout 30 --index-url "$torch_index" "$cpu"; then
    pip install "$venv"/.torch/torch-*.whl
    rm -r "$venv/.torch"
else
    echo "no CPU build of torch $torch_version in pip's sources or in '$torch_index':" \
        "taking what pip finds (from PyPI a CUDA build: several GB more)" >&2
    pip install "torch==$torch_version"
fi
pip install --no-build-isolation -e '.[torch,tensorflow,mpi,images,analysis,tune,dev]' cffi cloudpickle
