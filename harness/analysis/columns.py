"""The columns of the table: their names and kinds, and which field of a record each comes from."""

from __future__ import annotations

#: Every column, with the kind that it has also where a table has no value in it.
COLUMNS: dict[str, str] = {
    "sweep": "string",
    "kind": "string",
    "run_id": "string",
    "attempt": "Int64",
    "status": "string",
    "cause": "string",  # of a launch that gave no measurement
    "allocation": "string",
    "repeat": "Int64",
    "order": "Int64",
    "is_base": "boolean",
    "sequential": "boolean",  # of a sweep with ci_target
    "started_at": "string",
    "ended_at": "string",
    "workload": "string",
    "framework": "string",
    "engine": "string",
    "backend": "string",  # in force, as the launcher resolved it
    "backend_requested": "string",  # by the config; missing where it was left open
    "backend_proven": "string",
    "controller": "string",
    "launcher": "string",
    "device": "string",
    "scaling": "string",
    "world_size": "Int64",
    "nodes": "Int64",
    "placement": "string",  # devices per node as resolved, "8+2"
    "batch_size": "Int64",  # declared: of a rank (weak)
    "global_batch_size": "Int64",  # declared: of all ranks (strong)
    "rank_batch": "Int64",
    "global_batch": "Int64",
    "cores_per_rank": "Int64",
    "train_samples": "Int64",
    "parameters": "Int64",
    "gradient_bytes": "Int64",
    "learning_rate": "Float64",  # in force
    "gradient_allreduce": "boolean",
    "steps": "Int64",
    "samples": "Int64",
    "wall_s": "Float64",
    "rank_wall_min_s": "Float64",
    "warmup_s": "Float64",
    "throughput_samples_per_s": "Float64",
    "epoch_s": "Float64",  # train_samples / throughput
    "step_median_s": "Float64",
    "drift_change": "Float64",  # of a step's time over the window, relative
    "drift_p_value": "Float64",
    "drifting": "boolean",
    "outliers": "Int64",  # steps of any rank
    "outlier_time_share": "Float64",
    "first_loss": "Float64",
    "last_loss": "Float64",
    "bytes_reduced": "Int64",
    "phase_steps": "Int64",
    "phase_step_s": "Float64",
    "phase_sum_s": "Float64",
    "data_s": "Float64",
    "forward_s": "Float64",
    "backward_s": "Float64",
    "exposed_sync_s": "Float64",
    "transfer_s": "Float64",
    "wait_s": "Float64",
    "update_s": "Float64",
    "phase_overhead": "Float64",  # overheads: a step with the instrument / one without − 1
    "ablation_overhead": "Float64",
    "telemetry_overhead": "Float64",
    "timeline_overhead": "Float64",
    "ablation_overhead_error": "Float64",  # standard errors, from the scatter of a launch's blocks
    "telemetry_overhead_error": "Float64",
    "timeline_overhead_error": "Float64",
    "ablation_difference_s": "Float64",  # a step with the all-reduce − one without
    "interference_s": "Float64",  # ablation_difference_s − exposed_sync_s
    "interference_error_s": "Float64",  # standard error of the difference
    "skew_s": "Float64",  # last arrival − first arrival, on one clock
    "clock_wait_s": "Float64",  # wait from the same arrivals
    "clock_error_s": "Float64",
    "skew_resolved": "boolean",
    "allreduce_bytes": "Int64",
    "allreduce_p50_s": "Float64",
    "allreduce_p99_s": "Float64",
    "algbw_bytes_per_s": "Float64",
    "busbw_bytes_per_s": "Float64",
    "feed_batch_bytes": "Int64",  # of one rank
    "feed_warm_s": "Float64",  # a batch alone
    "feed_cold_s": "Float64",  # from a file cache that was dropped
    "timeline_steps": "Int64",  # of kind timeline only; times and counts are those of a step
    "timeline_negotiation_s": "Float64",
    "timeline_queue_s": "Float64",
    "timeline_copy_in_s": "Float64",
    "timeline_allreduce_s": "Float64",
    "timeline_copy_out_s": "Float64",
    "timeline_cycles": "Float64",
    "timeline_tensors": "Float64",
    "timeline_allreduces": "Float64",
    "timeline_tensors_fused": "Float64",
    "cpu_utilisation": "Float64",  # 0..1, mean over nodes
    "rank_cpu_cores": "Float64",  # busy, mean over ranks
    "rank_rss_max_bytes": "Int64",  # of the largest rank
    "gpu_utilisation": "Float64",  # 0..1, mean over devices
    "gpu_sm_activity": "Float64",  # 0..1
    "gpu_memory_max_bytes": "Int64",
    "gpu_sm_clock_mhz": "Float64",
    "gpu_power_w": "Float64",  # of all devices
    "energy_per_sample_j": "Float64",
    "gpu_throttle_reasons": "string",
    "config": "string",  # JSON without defaults; what run_id hashes
    "provenance": "string",  # JSON of what two launches of one curve must share
}

OF_RECORD = ("sweep", "kind", "run_id", "attempt", "status", "started_at", "ended_at")
OF_BLOCK = ("allocation", "repeat", "order", "is_base")
OF_CONFIG = ("engine", "scaling", "batch_size", "global_batch_size")
OF_RESOLVED = ("backend", "controller", "launcher", "device", "cores_per_rank")
OF_WORKLOAD = ("train_samples", "parameters", "gradient_bytes", "learning_rate")
OF_WINDOW = (
    "gradient_allreduce",
    "steps",
    "samples",
    "wall_s",
    "warmup_s",
    "throughput_samples_per_s",
    "step_median_s",
    "first_loss",
    "last_loss",
    "bytes_reduced",
)
OF_ALLREDUCE = {
    "bytes": "allreduce_bytes",
    "latency_p50_s": "allreduce_p50_s",
    "latency_p99_s": "allreduce_p99_s",
    "algbw_bytes_per_s": "algbw_bytes_per_s",
    "busbw_bytes_per_s": "busbw_bytes_per_s",
}
OF_STEADINESS = {
    "change": "drift_change",
    "p_value": "drift_p_value",
    "drifting": "drifting",
    "outliers": "outliers",
    "outlier_time_share": "outlier_time_share",
}
OF_PHASES = {
    "steps": "phase_steps",
    "step_s": "phase_step_s",
    "sum_s": "phase_sum_s",
    "data_s": "data_s",
    "forward_s": "forward_s",
    "backward_s": "backward_s",
    "exposed_sync_s": "exposed_sync_s",
    "transfer_s": "transfer_s",
    "wait_s": "wait_s",
    "update_s": "update_s",
}
OF_ABLATION = {
    "difference_s": "ablation_difference_s",
    "interference_s": "interference_s",
    "error_s": "interference_error_s",
}
OF_CLOCKS = {
    "skew_s": "skew_s",
    "wait_s": "clock_wait_s",
    "error_s": "clock_error_s",
    "resolved": "skew_resolved",
}
OF_FEED = {
    "batch_bytes": "feed_batch_bytes",
    "warm_s": "feed_warm_s",
    "cold_s": "feed_cold_s",
}
OF_TIMELINE = {
    name.removeprefix("timeline_"): name
    for name in COLUMNS
    if name.startswith("timeline_") and not name.startswith("timeline_overhead")
}
#: Column of an instrument's overhead → its name in a config.
OVERHEADS = {
    "phase_overhead": "phases",
    "ablation_overhead": "ablation",
    "telemetry_overhead": "telemetry",
    "timeline_overhead": "timeline",
}
#: The same of their errors.
OVERHEAD_ERRORS = {
    "ablation_overhead_error": "ablation",
    "telemetry_overhead_error": "telemetry",
    "timeline_overhead_error": "timeline",
}
