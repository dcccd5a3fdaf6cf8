# A trained coder as a folder that transformers and vLLM load, and what its reward sees.
# Requires results/train/; yields results/export/ and results/coder/gallery.html.
localrules:
    export,


rule export:
    input:
        lambda w: refuse_bad_input(TRAINING.export_targets),


rule export_coder:
    input:
        last=lambda w: TRAINING.last(w),
        evaluation=f"{TRAIN}/evaluation.json",
    output:
        card="results/export/{run}/README.md",
    log:
        "results/logs/export/{run}.log",
    threads: 1
    resources:
        **HEAVY,
    params:
        identity=lambda w: TRAINING.export_identity(w),
    message:
        "{wildcards.run}: export"
    run:
        TRAINING.export_coder(wildcards, output, log)


rule gallery:
    output:
        page=report(
            "results/coder/gallery.html",
            caption="../docs/captions/gallery.rst",
            category="Training",
            labels={"what": "what the reward sees"},
        ),
    log:
        "results/logs/coder/gallery.log",
    threads: 1
    message:
        "results/coder/gallery.html"
    run:
        TRAINING.gallery(output, log)
