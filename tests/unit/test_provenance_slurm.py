"""What a record keeps of a job's environment: what is listed, and nothing else."""

from __future__ import annotations

import pytest

from harness.provenance.slurm import slurm_facts

JOB = {
    "SLURM_JOB_ID": "4713",
    "SLURM_ARRAY_JOB_ID": "4711",
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_JOB_PARTITION": "alpha",
    "SLURM_JOB_NODELIST": "taurusi[8001-8003,8010],login1",
    "SLURM_JOB_NUM_NODES": "5",
    "SLURM_CPUS_ON_NODE": "48",
    "SLURM_CLUSTER_NAME": "taurus",
    "SLURM_JOB_NAME": "hvdscale-8+2",
}


def test_an_element_of_an_array() -> None:
    secrets = {"SLURM_JWT": "token", "SLURM_JOB_USER": "anna", "SLURM_SUBMIT_DIR": "/home/anna"}
    assert slurm_facts(JOB | secrets | {"HOME": "/home/anna"}) == {
        "job_id": "4713",
        "array_job_id": "4711",
        "array_task_id": "2",
        "restart_count": 1,
        "partition": "alpha",
        "nodelist": ["taurusi8001", "taurusi8002", "taurusi8003", "taurusi8010", "login1"],
        "nodes": 5,
        "cpus_on_node": 48,
        "cluster": "taurus",
        "job_name": "hvdscale-8+2",
    }


def test_what_is_not_set_has_no_key_and_no_requeue_is_none() -> None:
    assert slurm_facts({"SLURM_JOB_ID": "7"}) == {"job_id": "7", "restart_count": 0}


def test_outside_of_a_job_there_is_nothing() -> None:
    assert slurm_facts({}) is None
    assert slurm_facts({"SLURM_JOB_ID": "", "SLURM_CONF": "/etc/slurm/slurm.conf"}) is None


@pytest.mark.parametrize("text", ["n[1-", "n[1-2", "n]1["])
def test_a_list_of_nodes_that_cannot_be_read_is_kept_as_it_is(text: str) -> None:
    found = slurm_facts({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": text})
    assert found is not None
    assert found["nodelist"] == [text]


def test_numbers_that_are_none_are_left_out() -> None:
    found = slurm_facts({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4(x2)"})
    assert found == {"job_id": "7", "restart_count": 0}
