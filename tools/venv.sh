#!/bin/sh
# Make the virtual environment $1 with a fitting Python, or keep the one that is there.
set -eu
venv=$1

parent=$(dirname "$venv")
[ -d "$parent" ] || mkdir -p "$parent"
# A temporary folder that cannot be written makes pip and the compiler fail late and unclearly.
tmp=${TMPDIR:-/tmp}
if [ ! -w "$tmp" ]; then
    echo "$tmp cannot be written: set TMPDIR to a folder that can" >&2
    exit 2
fi
python=$(PREFLIGHT_DIR="$parent" sh "$(dirname "$0")/preflight.sh")

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    echo "making $venv with $python"
    "$python" -m venv --clear "$venv"
fi
