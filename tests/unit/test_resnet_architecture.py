"""The layers by name: counts, FLOPs, initial weights; what is said without a framework."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from workloads.api import WorkloadError
from workloads.resnet import ResNet
from workloads.resnet.architecture import DEPTHS, describe, initial_weights, pooled
from workloads.resnet.recipe import MEAN, STD, scale_and_shift
from workloads.resnet.weights import normals

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/resnet_torchvision.json").read_text())
PUBLISHED = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}
PINNED = [0.70438439, -0.02887807, -0.44977897, -0.89682126]


@pytest.mark.parametrize("depth", DEPTHS)
def test_parameters_are_the_published_ones(depth: int) -> None:
    architecture = describe(depth, 1000)
    assert architecture.parameters() == PUBLISHED[depth]
    assert GOLDEN["models"][str(depth)]["parameters"] == PUBLISHED[depth]
    # torchvision's state has a counter of batches for each normalisation besides.
    counters = len(list(architecture.convolutions()))
    assert len(architecture.shapes()) + counters == GOLDEN["models"][str(depth)]["tensors"]


def test_variants_and_defaults_say_what_the_layers_give() -> None:
    info = ResNet.info
    assert [variant.name for variant in info.variants] == [f"resnet{depth}" for depth in DEPTHS]
    for variant in info.variants:
        architecture = describe(int(variant.options["depth"]), 1000)
        assert variant.parameters == architecture.parameters()
        assert variant.flops_per_sample == architecture.flops_per_sample(224)
    assert info.parameters == PUBLISHED[50]
    assert info.flops_per_sample == describe(50, 1000).flops_per_sample(224) == 24_299_077_632
    assert info.image_inputs
    assert not info.lower_is_better
    assert info.learning_rate / info.learning_rate_batch == 0.1 / 256


def test_multiply_adds_of_a_forward_pass_are_the_published_ones() -> None:
    # torchvision's documentation of its weights: 1.81, 3.66, 4.09, 7.80, 11.51 GFLOPS, where a
    # multiply-add is one; the first convolution counts twice in training, not three times.
    for depth, published in zip(DEPTHS, (1.81, 3.66, 4.09, 7.80, 11.51), strict=True):
        architecture = describe(depth, 1000)
        training = architecture.flops_per_sample(224) + architecture.stem.flops(224)
        assert training / 6e9 == pytest.approx(published, abs=0.01)


def test_sizes_round_up_where_an_image_is_odd() -> None:
    stem = describe(18, 10).stem
    assert [pooled(stem.out_size(size)) for size in (224, 225, 64, 33, 8)] == [56, 57, 16, 9, 2]


def test_initial_weights_are_a_function_of_seed_and_name() -> None:
    architecture = describe(18, 10)
    first, again = (initial_weights(architecture, 3, True) for _ in range(2))
    other = initial_weights(architecture, 4, True)
    assert list(first) == list(architecture.shapes())
    for name, values in first.items():
        assert values.dtype == np.float32
        assert np.array_equal(values, again[name])
        assert np.array_equal(values, other[name]) == (values.ndim == 1), name
    # A name has numbers of its own, so more classes change no convolution.
    wide = initial_weights(describe(18, 20), 3, True)
    assert np.array_equal(first["layer4.1.conv2.weight"], wide["layer4.1.conv2.weight"])


def test_initial_weights_have_the_variance_of_the_recipe() -> None:
    architecture = describe(50, 1000)
    state = initial_weights(architecture, 1, True)
    for name, fan_out in (("conv1", 64 * 49), ("layer3.2.conv2", 256 * 9), ("fc", None)):
        std = 0.01 if fan_out is None else math.sqrt(2 / fan_out)
        assert float(state[f"{name}.weight"].std()) == pytest.approx(std, rel=0.02)
        assert float(state[f"{name}.weight"].mean()) == pytest.approx(0, abs=0.03 * std)
    assert not state["fc.bias"].any()
    gammas = {name for name in state if name.endswith("weight") and state[name].ndim == 1}
    zero = {name for name in gammas if not state[name].any()}
    assert zero == {name for name in gammas if name.endswith("bn3.weight")}
    assert all((state[name] == 1).all() for name in gammas - zero)
    plain = initial_weights(architecture, 1, False)
    assert all((plain[name] == 1).all() for name in gammas)
    assert all((state[name] == 1).all() for name in state if name.endswith("running_var"))
    assert not any(state[name].any() for name in state if name.endswith("running_mean"))


def test_normal_numbers_are_pinned() -> None:
    # Weights of a published result can be made again; the last bits may differ between CPUs.
    assert normals("conv1.weight", (4,), 1).tolist() == pytest.approx(PINNED, rel=1e-5)
    many = normals("x", (3, 100_001), 0)
    assert many.shape == (3, 100_001)
    assert np.isfinite(many).all()
    moments = [float((many.astype(np.float64) ** k).mean()) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.03)


def test_bytes_are_normalised_as_imagenet_networks_are() -> None:
    scale, shift = scale_and_shift()
    values = np.array([0, 124, 255], np.float64)[:, np.newaxis]
    expected = (values / 255 - np.array(MEAN)) / np.array(STD)
    assert values * scale + shift == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 20}, r"option depth: 20 is not one of \[18, 34, 50, 101, 152\]"),
        ({"image_size": 4}, "option image_size: 4 is below the minimum of 8"),
        ({"data": "folder"}, "data folder: option path is missing"),
        ({"path": "/images"}, "data synthetic: option path has no meaning; it is for data folder"),
        ({"data": "digits"}, "there are 10 classes, not 1000; set classes: 10"),
        ({"data": "digits", "classes": 10, "samples": 99}, "option samples has no meaning"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    options: dict[str, int | float | str | bool], message: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        ResNet(options, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_framework_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="has no jax model; it has: torch, tensorflow"):
        ResNet({}, tmp_path).parts("jax", seed=0)
