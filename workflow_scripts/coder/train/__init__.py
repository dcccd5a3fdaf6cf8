"""GRPO for the Developer and the Critic: rollouts, credit, loss, update, checkpoints, export.

Rollout (`episodes`), credit (`advantages`), loss (`losses`) and step (`update`) know nothing of each other beyond the
rows they pass on. Modules that need torch import it themselves; `config`, `schedule`, `advantages`, `rows`, `episodes`
and `prompts` do not. Left out: Snakemake, evaluation, the inference engine behind a server, more than one device.
"""
