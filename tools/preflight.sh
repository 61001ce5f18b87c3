#!/bin/sh
# Look for all that set-up needs from this machine before anything is changed; no root needed.
# Prints the path of a fitting Python on stdout. Everything that is missing is listed on stderr,
# at once, by what to install; then the exit status is 2.
#   PYTHON         the Python to use (default: the first fitting of python3.11, python3.12, python3)
#   CXX            the C++ compiler (default: g++)
#   PREFLIGHT_DIR  where the environment will be (default: the present folder)
#   PREFLIGHT_MIB  free space needed there, in MiB
set -u

need_mib=${PREFLIGHT_MIB:-5000}
where=${PREFLIGHT_DIR:-.}
cxx=${CXX:-g++}
missing=''

miss() {
    missing="$missing
  - $1"
}

# What one Python lacks, or nothing. One word each: run version bits venv headers.
python_lacks() {
    "$1" - <<'EOF' 2>/dev/null || echo run
import os
import sys
import sysconfig

lacks = []
if sys.version_info[:2] not in ((3, 11), (3, 12)) or sys.implementation.name != "cpython":
    lacks.append("version")
else:
    if sys.maxsize < 2 ** 32:
        lacks.append("bits")
    try:
        import ensurepip, venv
    except ImportError:
        lacks.append("venv")
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        lacks.append("headers")
print(" ".join(lacks))
EOF
}

find_python() {
    python=''
    almost=''
    almost_lacks=''
    if [ -n "${PYTHON:-}" ]; then candidates=$PYTHON; else candidates='python3.11 python3.12 python3'; fi
    for name in $candidates; do
        path=$(command -v "$name" 2>/dev/null) || continue
        lacks=$(python_lacks "$path")
        case $lacks in
        '') python=$path && return ;;
        *run* | *version*) ;;
        *) if [ -z "$almost" ]; then almost=$path almost_lacks=$lacks; fi ;;
        esac
    done
    if [ -z "$almost" ]; then
        miss "Python 3.11 or 3.12 (looked for: $candidates).
      Debian, Ubuntu: apt install python3 python3-venv python3-dev; elsewhere: a python.org, conda
      or module Python, named with PYTHON=/path/to/python3.11"
        return
    fi
    version=$("$almost" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    case $almost_lacks in *bits*) miss "a 64-bit Python ($almost is a 32-bit one)" ;; esac
    case $almost_lacks in *venv*)
        miss "the venv module (ensurepip) of $almost.
      Debian, Ubuntu: apt install python$version-venv" ;;
    esac
    case $almost_lacks in *headers*)
        miss "the C headers (Python.h) of $almost.
      Debian, Ubuntu: apt install python$version-dev; Fedora, RHEL: dnf install python$version-devel" ;;
    esac
}

check_compiler() {
    advice="Debian, Ubuntu: apt install g++; Fedora, RHEL: dnf install gcc-c++; on a cluster: module load gcc"
    if ! command -v "$cxx" >/dev/null 2>&1; then
        miss "g++ 11 or newer ($cxx is not on the PATH).
      $advice"
        return
    fi
    major=$("$cxx" -dumpversion 2>/dev/null | cut -d. -f1)
    case $major in
    '' | *[!0-9]*) miss "g++ 11 or newer ($cxx does not say its version).
      $advice" ;;
    *) if [ "$major" -lt 11 ]; then
        miss "g++ 11 or newer ($cxx is version $major: it cannot compile torch's C++20 headers).
      $advice"
    fi ;;
    esac
}

check_disk() {
    free_kib=$(df -Pk "$where" 2>/dev/null | awk 'NR == 2 { print $4 }')
    if [ -z "$free_kib" ]; then
        miss "a folder for the environment: $where cannot be read"
    elif [ "$free_kib" -lt $((need_mib * 1024)) ]; then
        miss "$need_mib MiB of free disk in $where (free: $((free_kib / 1024)) MiB)"
    fi
    if [ ! -w "$where" ]; then miss "leave to write in $where"; fi
}

system=$(uname -s)
machine=$(uname -m)
if [ "$system" != Linux ] || { [ "$machine" != x86_64 ] && [ "$machine" != amd64 ]; }; then
    echo "hvdscale runs on x86-64 Linux; this is $machine $system, for which it has not been built" >&2
    exit 2
fi

find_python
check_compiler
if ! command -v make >/dev/null 2>&1; then
    miss "make.
      Debian, Ubuntu: apt install make"
fi
check_disk

if [ -n "$missing" ]; then
    echo "set-up needs what this machine does not have:$missing" >&2
    exit 2
fi
echo "$python"
