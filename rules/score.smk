# Scores of rollouts: local metrics and judges' verdicts per task, one record per row, one table per track.
# Requires results/rollouts/; yields results/scores/ and results/tables/. A judge's calls are files of their own, kept
# while their content holds, so that a lost call costs one call; `judge_call` makes a single one by its name.
SCORE = "results/scores/{model}/{setting}"


wildcard_constraints:
    judge=r"[A-Za-z0-9][A-Za-z0-9._]*",
    call=r"S_[a-z_]+(_step_\d{3})?",
    track="online|offline",


localrules:
    measure,
    judge,
    judge_call,
    row_scores,
    tables,


rule measure:
    input:
        rollout=lambda w: SCORING.rollout(w),
    output:
        record=f"{SCORE}/{{task}}/measured.json",
    log:
        "results/logs/scores/{model}/{setting}/{task}/measure.log",
    threads: 1
    params:
        identity=lambda w: SCORING.measured_identity(w),
    message:
        "{wildcards.model} {wildcards.setting} {wildcards.task}: local metrics"
    run:
        SCORING.measure(wildcards, output, log)


rule judge:
    input:
        rollout=lambda w: SCORING.rollout(w),
    output:
        record=f"{SCORE}/{{task}}/judge/{{judge}}/judged.json",
    log:
        "results/logs/scores/{model}/{setting}/{task}/judge_{judge}.log",
    threads: 0
    resources:
        tasks_in_flight=1,
    params:
        identity=lambda w: SCORING.judged_identity(w),
    message:
        "{wildcards.model} {wildcards.setting} {wildcards.task}: judge {wildcards.judge}"
    run:
        SCORING.judge(wildcards, output, log)


rule judge_call:
    input:
        rollout=lambda w: ancient(f"{ROLLOUT}/{{task}}/trajectory.json".format(**w)),
    output:
        record=f"{SCORE}/{{task}}/judge/{{judge}}/{{call}}.json",
    log:
        "results/logs/scores/{model}/{setting}/{task}/judge_{judge}_{call}.log",
    threads: 0
    resources:
        tasks_in_flight=1,
    params:
        identity=lambda w: SCORING.judged_identity(w),
    message:
        "{wildcards.model} {wildcards.setting} {wildcards.task}: judge {wildcards.judge}, {wildcards.call}"
    run:
        SCORING.judge_call(wildcards, output, log)


rule row_scores:
    input:
        parts=lambda w: SCORING.scored(w),
    output:
        record=f"{SCORE}/scores.json",
    log:
        "results/logs/scores/{model}/{setting}/scores.log",
    threads: 1
    params:
        identity=lambda w: SCORING.row_identity(w),
    message:
        "{wildcards.model} {wildcards.setting}: scores"
    run:
        SCORING.row_scores(wildcards, output, log)


rule tables:
    input:
        rows=lambda w: SCORING.rows_of(w.track),
    output:
        csv=report(
            "results/tables/{track}.csv",
            caption="../docs/captions/table.rst",
            category="Tables",
            labels={"track": "{track}", "what": "scores of every row"},
        ),
        parquet="results/tables/{track}.parquet",
        md="results/tables/{track}.md",
        tex="results/tables/{track}.tex",
        pairs=report(
            "results/tables/{track}_pairs.csv",
            caption="../docs/captions/pairs.rst",
            category="Tables",
            labels={"track": "{track}", "what": "rows in pairs"},
        ),
        costs="results/tables/{track}_costs.csv",
        about="results/tables/{track}.json",
    log:
        "results/logs/tables/{track}.log",
    threads: 1
    message:
        "the table of the {wildcards.track} track"
    run:
        SCORING.tables(input.rows, output, log)
