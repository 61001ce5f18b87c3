"""NCCL's own account, as a real run on two H100 printed it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.engines.nccl_log import parse_nccl_log

LOG = Path(__file__).parents[1] / "golden" / "nccl" / "h100-x2.log"


def test_a_real_log() -> None:
    assert parse_nccl_log(LOG.read_text(encoding="utf-8")) == {
        "nccl_version": "2.28.9+cuda13.0",
        "nccl_network": "Socket",
        "nccl_channels": "24",
        "nccl_nvls_channels": "0",
        "nccl_nodes": "1",
        "nccl_transport": "P2P/CUMEM",
    }


def test_what_is_not_there_has_no_key() -> None:
    assert parse_nccl_log("nothing of interest") == {}


def test_a_process_reads_its_own_output_only_from_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; from harness.engines.nccl_log import own_output; print('x', flush=True);"
        "print(repr(own_output()), file=sys.stderr)"
    )
    argv = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with open(tmp_path / "out", "w") as out:
        done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, text=True, env=env)
    assert done.stderr.strip() == repr("x\n")
    piped = subprocess.run(argv, capture_output=True, text=True, env=env)
    assert piped.stderr.strip() == repr("")
