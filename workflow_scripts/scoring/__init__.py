"""Scores: local metrics, feature cosines, judges, aggregation, costs, and GUI-CC's acceptance rules.

`metrics` (pixels, edges, text) and `features` (SigLIP, DINOv2) compare a predicted next screen with the true one;
`judges` asks a vision-language model; `aggregate` turns what they say into rows; `costs` adds up tokens and times;
`gui_cc_import` reads and checks results in GUI-CC's layout, ours or other people's. Nothing here knows Snakemake, and
importing any module loads neither torch nor scipy nor the openai client. Left out: tables and the report.
"""
