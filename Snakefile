# guiloop: closed-loop rollouts of GUI world models, their scores, and the training of a visual coder.
#
#   results/rollouts/{model}/{setting}/{task}/step_{k}/…   every step's screen, action and prediction
#   results/rollouts/{model}/{setting}/rollout_results.json   the row as GUI-CC's evaluator reads it
#   results/scores/{model}/{setting}/…                        local metrics and judges' verdicts per task, scores.json per row
#   results/tables/{track}.{csv,parquet,md,tex}               one line per model × setting
#   results/report/index.html                                 every step to look at; opens from disk
#   results/train/{run}/…                                     iterations, log.csv, curves.png, evaluation.json
#   results/export/{run}/…                                    the trained coder, ready to be served
#   results/logs/…                                            one log per job that had something to say, progress.log
#
#   snakemake --cores 8 --config model=browser
from snakemake.utils import min_version

min_version("9.27")


include: "rules/common.smk"
include: "rules/rollout.smk"
include: "rules/shards.smk"
include: "rules/checks.smk"
include: "rules/score.smk"
include: "rules/report.smk"
include: "rules/train.smk"
include: "rules/export.smk"


localrules:
    all,
    rollouts,
    scores,
    trajectories,


rule all:
    default_target: True
    input:
        lambda w: RUN.rollout_targets(),
        lambda w: SCORING.table_targets(),
        "results/report/index.html",


rule rollouts:
    input:
        lambda w: RUN.rollout_targets(),


rule scores:
    input:
        lambda w: SCORING.score_targets(),


rule trajectories:
    input:
        lambda w: RUN.trajectory_targets(),
