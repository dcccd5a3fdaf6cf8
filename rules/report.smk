# The report: pages that open from disk. One job per row makes its page and those of its episodes; one job makes the
# index and a page per task. Requires results/rollouts/, results/scores/, results/tables/; yields results/report/.
localrules:
    report_row,
    report,


rule report_row:
    input:
        scores="results/scores/{model}/{setting}/scores.json",
    output:
        page="results/report/rows/{model}/{setting}/index.html",
    log:
        "results/logs/report/{model}/{setting}.log",
    threads: 1
    params:
        identity=lambda w: SCORING.report_identity,
    message:
        "{wildcards.model} {wildcards.setting}: pages of the report"
    run:
        SCORING.report_row(wildcards, output, log)


rule report:
    input:
        rows=lambda w: SCORING.report_rows(),
        tables=lambda w: SCORING.table_targets(),
    output:
        page=report(
            "results/report/index.html",
            caption="../docs/captions/report.rst",
            category="Report",
            labels={"what": "scores, plots and episodes"},
        ),
    log:
        "results/logs/report/index.log",
    threads: 1
    params:
        identity=lambda w: SCORING.report_identity,
    message:
        "results/report/index.html"
    run:
        SCORING.report(output, log)
