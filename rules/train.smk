# Training of the visual coder: a chain of jobs, each several iterations of a run, then its evaluation and curves.
# Requires `run: NAME` and `runs: {NAME: …}` in the configuration; yields results/train/. The work is done by processes
# of their own (workflow_scripts/worker.py), started with this interpreter, so it must have the extra `train`. An
# iteration that is finished is no part of the plan, so the plan of a long run is as short as its rest.
wildcard_constraints:
    run=r"[A-Za-z0-9][A-Za-z0-9._]*",
    iteration=r"\d{5}",
    collector=r"\d+",
    group=r"\d{5}",
    member=r"\d{2}",


localrules:
    curves,
    train,


TRAIN = "results/train/{run}"
# What a job that loads the base model asks for; the same for all of them (`slurm.train` of the configuration).
HEAVY = dict(
    training=lambda w: TRAINING.slot(),
    slurm_partition=lambda w: TRAINING.resource("slurm_partition"),
    slurm_account=lambda w: TRAINING.resource("slurm_account"),
    qos=lambda w: TRAINING.resource("qos"),
    constraint=lambda w: TRAINING.resource("constraint"),
    gres=lambda w: TRAINING.resource("gres"),
    runtime=lambda w: TRAINING.resource("runtime"),
    mem_mb=lambda w: TRAINING.resource("mem_mb"),
    cpus_per_task=lambda w: TRAINING.resource("cpus_per_task"),
    slurm_extra=lambda w: TRAINING.resource("slurm_extra"),
)


rule train:
    input:
        lambda w: refuse_bad_input(TRAINING.train_targets),


rule warm_start:
    input:
        base=lambda w: TRAINING.base_of_warm_start(w),
    output:
        record=f"{TRAIN}/warm_start/log.json",
    log:
        "results/logs/train/{run}/warm_start.log",
    threads: 1
    resources:
        **HEAVY,
    params:
        identity=lambda w: TRAINING.warm_start_identity(w),
    message:
        "{wildcards.run}: warm start"
    run:
        TRAINING.warm_start(wildcards, output, log)


rule update:
    input:
        before=lambda w: TRAINING.before(w),
    output:
        record=f"{TRAIN}/iteration_{{iteration}}/checkpoint.json",
    log:
        "results/logs/train/{run}/update_{iteration}.log",
    priority: 10
    threads: 1
    resources:
        **HEAVY,
    params:
        identity=lambda w: TRAINING.update_identity(w),
    message:
        "{wildcards.run}: iterations up to {wildcards.iteration}"
    run:
        TRAINING.update(wildcards, output, log)


rule collect:
    input:
        before=lambda w: TRAINING.before(w),
    output:
        record=f"{TRAIN}/collectors/to_{{iteration}}_{{collector}}.json",
    log:
        "results/logs/train/{run}/collect_{iteration}_{collector}.log",
    threads: 1
    resources:
        **HEAVY,
    message:
        "{wildcards.run}: collector {wildcards.collector} up to iteration {wildcards.iteration}"
    run:
        TRAINING.collect(wildcards, output, log)


rule episode:
    input:
        before=lambda w: TRAINING.before_episode(w),
    output:
        record=f"{TRAIN}/iteration_{{iteration}}/episodes/group_{{group}}_member_{{member}}.json",
    log:
        "results/logs/train/{run}/iteration_{iteration}_group_{group}_member_{member}.log",
    threads: 1
    resources:
        **HEAVY,
    message:
        "{wildcards.run}: iteration {wildcards.iteration}, episode {wildcards.member} of group {wildcards.group}"
    run:
        TRAINING.episode(wildcards, output, log)


rule evaluate:
    input:
        last=lambda w: TRAINING.last(w),
    output:
        record=f"{TRAIN}/evaluation.json",
    log:
        "results/logs/train/{run}/evaluate.log",
    threads: 1
    resources:
        **HEAVY,
    params:
        identity=lambda w: TRAINING.evaluation_identity(w),
    message:
        "{wildcards.run}: evaluation on held-out pages"
    run:
        TRAINING.evaluate(wildcards, output, log)


rule curves:
    input:
        last=lambda w: TRAINING.last(w),
    output:
        png=report(
            f"{TRAIN}/curves.png",
            caption="../docs/captions/curves.rst",
            category="Training",
            labels={"run": "{run}", "what": "learning curves"},
        ),
        csv=f"{TRAIN}/log.csv",
    log:
        "results/logs/train/{run}/curves.log",
    threads: 1
    message:
        "{wildcards.run}: log.csv and curves.png"
    run:
        TRAINING.curves(wildcards, output, log)
