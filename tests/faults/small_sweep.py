"""The sweep that faults are injected into: small points of two ranks, a batch size each."""

from __future__ import annotations

SWEEP = """\
name: {name}
workload: {{name: stress_strain, samples: 2000}}
engine: {engine}
backend: {backend}
launcher: {launcher}
placement: 1x2
cores_per_rank: 1
batch_size: {batches}
base: null
measure: {{warmup_steps: 2, window_s: 0.2, min_steps: 3, blocks: {blocks}, timeout_s: {timeout_s},
           instruments: []}}
{more}"""
