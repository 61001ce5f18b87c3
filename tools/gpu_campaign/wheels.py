#!/usr/bin/env python3
"""Fetch what a campaign needs on a machine with GPUs and without a network: wheels and an sdist.

    PYTHONPATH=. python3 tools/gpu_campaign/wheels.py WHEELS HAS [--python 3.12]

HAS names what that machine's Python has already, one package a line, as its ``pip list
--format=freeze`` prints it: torch, which nobody wants to carry, must be in it. WHEELS gets a wheel
of every other package that hvdscale, its analysis, its tuner and its tests need there, in the
versions of ``constraints/``, and Horovod's sdist. What WHEELS has already is not fetched again,
wheels of other versions go.
"""

from __future__ import annotations

import argparse
import configparser
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.errors import BuildError
from harness.horovod_build.source import fetch_sdist

ROOT = Path(__file__).parents[2]
EXTRAS = ("images", "analysis", "tune", "horovod")
#: What Horovod is built with and imports beside that, and what runs the tests there.
BESIDE = ("wheel", "packaging", "cffi", "cloudpickle")
TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
#: The index has no wheel of these; theirs, made here, fits every machine: they are pure Python.
PURE = ("python-hostlist",)
MANYLINUX = ("2014", "1", *(f"_2_{minor}" for minor in (34, 31, 28, 27, 26, 24, 17, 12, 5)))


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_in(text: str) -> frozenset[str]:
    """Return the packages that lines of names or of ``name==version`` tell."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return frozenset(canonical(re.split(r"[\s=<>!~;@\[]", line)[0]) for line in lines if line)


def requirements(setup_cfg: Path) -> tuple[str, ...]:
    """Return what hvdscale needs there, but for the frameworks and MPI; Horovod is built there."""
    config = configparser.ConfigParser()
    config.read(setup_cfg)
    lists = [config["options"]["install_requires"]]
    lists += [config["options.extras_require"][extra] for extra in EXTRAS]
    lines = [line for text in lists for line in text.split("\n") if line.strip()]
    wanted = [line for line in lines if names_in(line) != {"horovod"}]
    return tuple(dict.fromkeys([*wanted, *BESIDE, *TESTS]))


def pip(*argv: str) -> str:
    """Run pip and return what it prints.

    Raises:
        BuildError: if it fails.

    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        why = " ".join(line.removeprefix("ERROR: ") for line in told) or "it says nothing"
        raise BuildError(f"pip {argv[0]} ended with {done.returncode}: {why}")
    return done.stdout


def target(python: str) -> list[str]:
    """Return pip's options for a Python and a Linux of x86-64 that need not be this machine's."""
    tags = [f"--platform=manylinux{name}_x86_64" for name in MANYLINUX]
    return ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *tags]


def resolved(wanted: Sequence[str], python: str, constraints: Path) -> dict[str, str]:
    """Return name and version of everything that ``wanted`` takes, by pip's own resolver."""
    of_wheels = [one for one in wanted if not names_in(one) & set(PURE)]
    with tempfile.TemporaryDirectory() as folder:
        told = pip(
            *("install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"),
            *("--target", folder, "--constraint", str(constraints)),
            *target(python),
            *of_wheels,
        )
    found = (one["metadata"] for one in json.loads(told)["install"])
    needs = {canonical(one["name"]): one["version"] for one in found}
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", constraints.read_text(), re.MULTILINE))
    return needs | {name: pins[name] for name in PURE}


def missing(needs: dict[str, str], has: Iterable[str]) -> dict[str, str]:
    """Return what of ``needs`` the machine has not; what Horovod is built with always goes.

    An image's own setuptools is a newer one as a rule, without the pkg_resources that Horovod's
    launcher imports.
    """
    there = set(has) - {"setuptools"}
    return {name: version for name, version in needs.items() if name not in there}


def fetch(wheels: Path, packages: dict[str, str], python: str) -> None:
    """Bring ``wheels`` to exactly these packages: of two versions of one, pip refuses both."""
    kept = {}
    for path in wheels.glob("*.whl"):
        name, version = path.name.split("-")[:2]
        if packages.get(canonical(name)) == version:
            kept[canonical(name)] = path
        else:
            path.unlink()
    wanted = {name: f"{name}=={packages[name]}" for name in packages if name not in kept}
    pure = [wanted.pop(name) for name in PURE if name in wanted]
    if wanted:
        names = sorted(wanted.values())
        pip("download", "--quiet", "--no-deps", "--dest", str(wheels), *target(python), *names)
    if pure:
        pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), *pure)


def main() -> int:
    """Fetch, and say how much there is to carry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("has", type=Path)
    parser.add_argument("--python", default="3.12", help="that machine's Python (default: 3.12)")
    args = parser.parse_args()
    try:
        has = names_in(args.has.read_text())
    except (OSError, ValueError) as error:
        print(f"{args.has}: {error}", file=sys.stderr)
        return 2
    if "torch" not in has:
        print(f"{args.has} has no torch: build Horovod where torch is", file=sys.stderr)
        return 2
    constraints = ROOT / "constraints" / f"py{args.python.replace('.', '')}.txt"
    try:
        args.wheels.mkdir(parents=True, exist_ok=True)
        needs = resolved(requirements(ROOT / "setup.cfg"), args.python, constraints)
        fetch(args.wheels, missing(needs, has), args.python)
        fetch_sdist(args.wheels)
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    files = [path for path in args.wheels.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{args.wheels}: {len(files)} files, {size:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
