# Questions before a run, answered in seconds and without making anything: what this node lacks, what a run will take.
#   snakemake preflight --config model=flux2 planner=openai
#   snakemake plan --config model=flux2 shards=8
localrules:
    preflight,
    plan,


rule preflight:
    log:
        "results/logs/preflight.log",
    retries: 0
    message:
        "what is missing here"
    run:
        RUN.preflight()


rule plan:
    log:
        "results/logs/plan.log",
    message:
        "what the run will take"
    run:
        RUN.plan()
