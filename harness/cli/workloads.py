"""``hvdscale workloads``: which training jobs there are, without importing a framework."""

from __future__ import annotations

import json
from typing import Any

from workloads import registry
from workloads.api import Option, WorkloadInfo


def command_workloads(as_json: bool) -> int:
    """Print each workload with its frameworks, parameters, sizes and options."""
    infos = [registry.info(name) for name in registry.names()]
    if as_json:
        print(json.dumps([_as_dict(info) for info in infos], indent=1))
        return 0
    print("\n\n".join(_text(info) for info in infos))
    return 0


def _as_dict(info: WorkloadInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "title": info.title,
        "frameworks": list(info.frameworks),
        "parameters": info.parameters,
        "gradient_bytes": 4 * info.parameters,  # in float32, as all of them train
        "flops_per_sample": info.flops_per_sample,
        "data": info.data,
        "target_metric": info.target_metric,
        "lower_is_better": info.lower_is_better,
        "learning_rate": info.learning_rate,
        "learning_rate_batch": info.learning_rate_batch,
        "order": info.order,
        "variants": [
            {
                "name": variant.name,
                "options": dict(variant.options),
                "parameters": variant.parameters,
                "flops_per_sample": variant.flops_per_sample,
            }
            for variant in info.variants
        ],
        "options": {name: _option(option) for name, option in info.options.items()},
    }


def _option(option: Option) -> dict[str, Any]:
    bounds = {"minimum": option.minimum, "maximum": option.maximum}
    known = {name: value for name, value in bounds.items() if value is not None}
    choices = {"choices": list(option.choices)} if option.choices else {}
    return {"default": option.default, "help": option.help, **known, **choices}


def _text(info: WorkloadInfo) -> str:
    better = "lower" if info.lower_is_better else "higher"
    lines = [
        f"{info.name}: {info.title}",
        f"  {_size(info.parameters, info.flops_per_sample)}; {', '.join(info.frameworks)}",
        f"  learning rate {info.learning_rate:g} at batch {info.learning_rate_batch}; "
        f"target metric {info.target_metric}, {better} is better",
    ]
    lines += [f"  data: {info.data}"] if info.data else []
    for variant in info.variants:
        chosen = ", ".join(f"{name}: {value}" for name, value in variant.options.items())
        size = _size(variant.parameters, variant.flops_per_sample)
        lines.append(f"  {variant.name}: {size} ({chosen})")
    lines += [
        f"  {name} = {option.default!r}: {option.help}" for name, option in info.options.items()
    ]
    return "\n".join(lines)


def _size(parameters: int, flops: float | None) -> str:
    work = f", {_flops(flops)} a sample" if flops is not None else ""
    return f"{parameters:,} parameters, {4 * parameters:,} bytes of gradients{work}"


def _flops(count: float) -> str:
    """Return a number of operations in three digits, as 5.86 MFLOP."""
    units = ["", "K", "M", "G", "T", "P"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000.0
        units.pop(0)
    return f"{count:.3g} {units[0]}FLOP"
