"""The stress-strain regressor: two material parameters from a noisy cyclic shear test.

``physics`` is the constitutive model, ``curves`` the labelled curves by index, ``store`` their
file, ``making`` how it comes about, ``network`` the network's numbers, ``torch_model`` and
``tf_model`` the network itself. The default size and network are those of a study at TU Dresden
(2022): 1,000,000 curves of 200 points, 153,441 parameters, batch 75.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from workloads.api import (
    ArraySamples,
    Option,
    OptionValue,
    Parts,
    Workload,
    WorkloadError,
    WorkloadInfo,
)
from workloads.stress_strain.curves import CurveSpec
from workloads.stress_strain.making import ensure
from workloads.stress_strain.store import DataSet, DataSpec, open_data

_INFO = WorkloadInfo(
    name="stress_strain",
    title="Stress-strain curves to material parameters (1-D convolutional regressor)",
    frameworks=("torch", "tensorflow"),
    parameters=153_441,
    target_metric="mse",
    learning_rate=4.7331e-4,
    learning_rate_batch=75,
    flops_per_sample=5_862_972.0,
    data="curves of 200 points x {strain, stress, flag}; 1,000,000 are 2.4 GB",
    options={
        "samples": Option(
            1_000_000,
            "curves in the data set; the first 75 % are for training, the rest for testing",
            minimum=4,
            maximum=1_000_000_000,
        ),
        "data_seed": Option(1, "seed of the curves", minimum=0, maximum=2**63 - 1),
        "stress_noise": Option(
            0.02,
            "standard deviation of the stress error, over the curve's greatest stress",
            minimum=0.0,
            maximum=1.0,
        ),
        "strain_noise": Option(
            0.005,
            "standard deviation of the strain error, over the curve's greatest strain",
            minimum=0.0,
            maximum=1.0,
        ),
    },
)


class StressStrain(Workload):
    """The regressor at given options.

    Curves 0 to ``train_size() - 1`` are the training split, the others the test split: curves are
    independent and alike, so a cut at any index is a fair one.
    """

    info = _INFO

    def __init__(self, options: Mapping[str, OptionValue], data_dir: Path) -> None:
        super().__init__(options, data_dir)
        chosen = self.options
        self._spec = DataSpec(
            int(chosen["samples"]),
            CurveSpec(
                seed=int(chosen["data_seed"]),
                stress_noise=float(chosen["stress_noise"]),
                strain_noise=float(chosen["strain_noise"]),
            ),
        )

    def train_size(self) -> int:
        """Return three quarters of the samples, rounded down."""
        return self._spec.count * 3 // 4

    def prepare(self) -> None:
        """Make the data file where there is no good one; many processes may call this at once."""
        ensure(self._spec, self.data_dir)

    def data_files(self) -> tuple[Path, ...]:
        """Return the file of all curves."""
        return (self._spec.path(self.data_dir),)

    def train(self) -> ArraySamples:
        """Return the first three quarters of the curves."""
        return self._split(slice(0, self.train_size()))

    def test(self) -> ArraySamples:
        """Return the last quarter of the curves."""
        return self._split(slice(self.train_size(), self._spec.count))

    def parts(self, framework: str, seed: int) -> Parts:
        """Build the network, equal on every rank for one ``seed``, and what trains it."""
        if framework not in self.info.frameworks:
            raise WorkloadError(
                f"{self.info.name} has no {framework} model; "
                f"it has: {', '.join(self.info.frameworks)}"
            )
        if framework == "tensorflow":
            from workloads.stress_strain import tf_model

            return tf_model.build(seed)
        from workloads.stress_strain import torch_model

        return torch_model.build(seed)

    @cached_property
    def _data(self) -> DataSet:
        return open_data(self._spec, self.data_dir)

    def _split(self, part: slice) -> ArraySamples:
        return ArraySamples(
            self._data.inputs[part], self._data.labels[part], self._spec.path(self.data_dir)
        )
