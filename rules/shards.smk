# A model's tasks in parts, one job each: under `--profile profiles/slurm` a job of the cluster, else a job of this machine.
# Requires `shards: N` in the configuration; yields results/shards/{model}/{shards}/{shard}.json, the manifest that
# stands in rollout_results' inputs for the trajectories which that job makes (workflow_scripts/shard.py). Models that
# answer at an endpoint have no shards: their steps wait in the process that plans.
wildcard_constraints:
    shards=r"\d+",
    shard=r"\d+",


rule shard:
    output:
        manifest="results/shards/{model}/{shards}/{shard}.json",
    log:
        "results/logs/shards/{model}/{shards}/{shard}.log",
    threads: 1
    resources:
        slurm_partition=lambda w: RUN.shard_resource(w, "slurm_partition"),
        slurm_account=lambda w: RUN.shard_resource(w, "slurm_account"),
        qos=lambda w: RUN.shard_resource(w, "qos"),
        constraint=lambda w: RUN.shard_resource(w, "constraint"),
        gres=lambda w: RUN.shard_resource(w, "gres"),
        runtime=lambda w: RUN.shard_resource(w, "runtime"),
        mem_mb=lambda w: RUN.shard_resource(w, "mem_mb"),
        cpus_per_task=lambda w: RUN.shard_resource(w, "cpus_per_task"),
        slurm_extra=lambda w: RUN.shard_resource(w, "slurm_extra"),
    message:
        "{wildcards.model}: shard {wildcards.shard} of {wildcards.shards}"
    run:
        RUN.shard(wildcards, output, log)
