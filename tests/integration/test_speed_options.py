"""Speed options on two real ranks: each is active, trains alike, and reduces what it should."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.ranks import point, run_program
from tests.requirements import require_modules, require_mpi

Answers = list[dict[str, Any]]
TOLERANCE = 1e-4  # relative, of a loss
STEPS = 4
SYNCHRONISED = [
    "plain",
    "channels_last",
    "bf16",
    "accumulate",
    "fused",
    "all",
    "compile",
    "layers",
    "clipped",
    "graph",
    "graph of parts",
]
OF_HOROVOD = [
    "groups",
    "fp16",
    "graph in pieces",
    "compiled in pieces",
    "graph in fp16",
    "adasum",
    "adasum fp16",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give one cache of what was compiled to all launches."""
    return tmp_path_factory.mktemp("inductor")


def launched(engine: str, backend: str, folder: Path, cache: Path, what: str) -> Answers:
    require_modules("torch", *(["horovod"] if engine == "horovod" else []))
    config = point(engine, backend, 2, deterministic=what == "deterministic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        return run_program("speed", config, folder, folder, what)


@pytest.fixture(scope="module")
def horovod(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Answers:
    require_mpi()  # Adasum has no other
    return launched("horovod", "mpi", tmp_path_factory.mktemp("horovod"), cache, "options")


@pytest.fixture(scope="module", params=["horovod", "ddp"])
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: Path
) -> Answers:
    if request.param == "horovod":
        found: Answers = request.getfixturevalue("horovod")
        return found
    return launched("ddp", "gloo", tmp_path_factory.mktemp("ddp"), cache, "options")


def losses(answers: Answers, name: str) -> np.ndarray:
    """Return (ranks, steps)."""
    return np.array([answer[name]["losses"] for answer in answers])


def assert_in_step(answers: Answers, name: str) -> None:
    """The gate's conditions: equal weights, and all of the gradient's bytes in each step."""
    first, second = (answer[name] for answer in answers)
    assert first["checksum"] == second["checksum"], name
    for found in (first, second):
        assert found["reduced"] == [STEPS, STEPS * found["gradient_bytes"]], name


def test_each_option_keeps_the_ranks_in_step_and_reduces_all(answers: Answers) -> None:
    for name in SYNCHRONISED:
        assert_in_step(answers, name)


def test_horovods_options_keep_the_ranks_in_step_and_reduce_all(horovod: Answers) -> None:
    for name in OF_HOROVOD:
        assert_in_step(horovod, name)


def test_channels_last_trains_as_contiguous_images_do(answers: Answers) -> None:
    np.testing.assert_allclose(
        losses(answers, "channels_last"), losses(answers, "plain"), rtol=TOLERANCE
    )
    assert answers[0]["channels_last"]["options"] == {
        "execution.channels_last: true": "3 of 3 outputs of convolutions are in channels_last"
    }


def test_a_fused_or_compiled_step_is_the_same_step(answers: Answers) -> None:
    np.testing.assert_allclose(losses(answers, "fused"), losses(answers, "plain"), rtol=TOLERANCE)
    np.testing.assert_allclose(
        losses(answers, "compile"), losses(answers, "layers"), rtol=TOLERANCE
    )
    options = answers[0]["fused"]["options"] | answers[0]["compile"]["options"]
    assert options == {
        "execution.fused_optimiser: true": "1 of 1 parameter groups of SGD are fused",
        "execution.compile: true": "torch.compile made 1 graphs, and broke off 0 times",
    }


def test_a_captured_step_is_the_same_step(answers: Answers) -> None:
    """Through the engine, with what captures on a GPU replaced; the all-reduces are real."""
    for name, eager in (("graph", "plain"), ("graph of parts", "accumulate")):
        np.testing.assert_allclose(losses(answers, name), losses(answers, eager), rtol=TOLERANCE)
    if "graph in pieces" in answers[0]:
        for name, rtol in (
            ("graph in pieces", TOLERANCE),
            ("compiled in pieces", TOLERANCE),
            ("graph in fp16", 1e-3),
        ):
            np.testing.assert_allclose(losses(answers, name), losses(answers, "plain"), rtol=rtol)


def test_what_a_captured_step_was_asked_for_is_in_force(horovod: Answers) -> None:
    found = horovod[0]
    assert (
        "fused update, captured after 3 eager steps"
        in found["graph"]["options"]["execution.graph: true"]
    )
    assert "in 2 pieces of" in found["graph in pieces"]["options"]["horovod.groups: 2"]
    compiled = found["compiled in pieces"]["options"]
    assert compiled["horovod.groups: 2"] == "the buffer is reduced in 2 pieces of 1268, 1216 bytes"
    assert "1 graphs, and broke off 0 times" in compiled["execution.compile: true"]
    assert found["graph in fp16"]["wire_bytes"] * 2 == found["graph in fp16"]["gradient_bytes"]
    assert "float16" in found["graph in fp16"]["options"]["horovod.compression: fp16"]


def test_ddps_knobs_are_read_back(answers: Answers) -> None:
    if "knobs" not in answers[0]:
        assert "adasum" in answers[0]  # Horovod's launch
        return
    assert_in_step(answers, "knobs")
    assert answers[0]["knobs"]["options"] == {
        "ddp.bucket_mb: 0.001": "bucket_cap_bytes: 1048",
        "ddp.gradient_as_bucket_view: true": "gradient_as_bucket_view: 1",
        "ddp.static_graph: true": "static_graph: 1",
    }


def test_bf16_is_near_and_not_the_same(answers: Answers) -> None:
    near, exact = losses(answers, "bf16"), losses(answers, "plain")
    np.testing.assert_allclose(near, exact, rtol=0.02)
    assert not np.array_equal(near, exact)
    assert "bfloat16" in answers[0]["bf16"]["options"]["execution.precision: bf16"]


def test_options_go_together(answers: Answers) -> None:
    assert set(answers[1]["all"]["options"]) == {
        "execution.channels_last: true",
        "execution.precision: bf16",
        "execution.fused_optimiser: true",
    }
    np.testing.assert_allclose(losses(answers, "all"), losses(answers, "accumulate"), rtol=0.02)


def test_two_ranks_clip_as_one_does(answers: Answers) -> None:
    """The mean over ranks is clipped, and not each rank's part of it."""
    together = losses(answers, "clipped").mean(axis=0)
    np.testing.assert_allclose(together, answers[0]["clipped alone"]["losses"], rtol=TOLERANCE)
    unclipped = losses(answers, "layers").mean(axis=0)
    np.testing.assert_allclose(unclipped, answers[0]["alone"]["losses"], rtol=TOLERANCE)
    assert np.abs(together / unclipped - 1).max() > 20 * TOLERANCE
    assert answers[0]["layers"]["norm"] > 1
    for answer in answers:
        assert answer["clipped"]["norm"] == pytest.approx(0.5, rel=1e-4)


def test_a_gradient_is_this_ranks_own_and_leaves_nothing_behind(answers: Answers) -> None:
    for answer in answers:
        found = answer["gradient"]
        assert max(found["errors"]) < 1e-6
        assert found["same_losses"]
        assert found["same_weights"]
        assert found["reduced"] == answer["plain"]["reduced"]


def test_groups_and_compression_are_in_force(horovod: Answers) -> None:
    found = horovod[0]
    assert found["groups"]["checksum"] == found["plain"]["checksum"]
    assert found["groups"]["options"] == {
        "horovod.groups: 2": "Horovod made 2 groups of 9 gradients"
    }
    np.testing.assert_allclose(losses(horovod, "fp16"), losses(horovod, "plain"), rtol=1e-3)
    assert found["fp16"]["checksum"] != found["plain"]["checksum"]
    assert found["fp16"]["wire_bytes"] * 2 == found["fp16"]["gradient_bytes"]
    assert found["fp16"]["options"] == {"horovod.compression: fp16": "FP16Compressor"}


def test_adasum_is_horovods_own(horovod: Answers) -> None:
    for answer in horovod:
        assert answer["adasum"]["losses"] == answer["adasum by Horovod"]
    assert horovod[0]["adasum"]["checksum"] != horovod[0]["plain"]["checksum"]
    assert list(horovod[0]["adasum"]["options"]) == ["horovod.op: adasum"]


def test_adasum_without_all_reduce_is_the_optimiser_itself(horovod: Answers) -> None:
    for answer in horovod:
        assert answer["adasum unsynchronised"] == {"same": True, "reduced": 1, "moved": True}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too many groups", "groups: 100 was asked for.*Horovod made 9 groups of 9 gradients"),
        ("too many pieces", "groups: 100 was asked for.*the buffer is reduced in 8 pieces of"),
        ("adasum clipped", "cannot be clipped to a norm of 0.5.*set horovod.op: average"),
        ("cycle", "cycle_time_ms: 0.5 was asked for.*HOROVOD_CYCLE_TIME=1.0"),
        ("hierarchical", "hierarchical_allreduce: true was.*HOROVOD_HIERARCHICAL_ALLREDUCE=0"),
    ],
)
def test_what_is_asked_for_and_not_active_fails(horovod: Answers, name: str, words: str) -> None:
    for answer in horovod:
        assert re.search(words, answer[name]["error"])


def test_two_launches_of_one_deterministic_config_are_one(tmp_path: Path, cache: Path) -> None:
    once, again = (
        launched("horovod", "gloo", tmp_path / name, cache, "deterministic")
        for name in ("once", "again")
    )
    assert once == again
    assert [answer["seed"] for answer in once] == [1, 2]  # config.seed + rank: dropout differs
    assert "use_deterministic_algorithms: True" in once[0]["options"]["deterministic: true"]
    assert once[0]["checksum"] == once[1]["checksum"]
