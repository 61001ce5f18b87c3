"""What a real MPI says of itself in the process that uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.integration.ranks import ROOT

PROGRAM = """
import json
import mpi4py
mpi4py.rc.initialize = False
from harness.provenance import mpi
found = [mpi.collect()]
from mpi4py import MPI
found.append(mpi.collect())
MPI.Init()
found.append(mpi.collect())
said = MPI.Get_library_version()
MPI.Finalize()
found.append(mpi.collect())
print(json.dumps([found, said]))
"""


def test_an_mpi_tells_its_cuda_awareness_only_while_it_runs() -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **root, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (none, loaded, running, ended), said = json.loads(done.stdout)
    assert none == {}
    assert loaded["library"] == " ".join(said.rstrip("\0").split())
    assert os.path.isfile(loaded["path"])
    assert "cuda_aware" not in loaded
    # PyPI's Open MPI and Debian's are both built without CUDA.
    assert running == loaded | {"cuda_aware": False}
    assert ended == loaded
