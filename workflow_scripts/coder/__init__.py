"""The visual coder: screenshot -> HTML. Tasks, a real-browser environment, its reward, and its servers.

Nothing here imports torch or Snakemake. The training loop lives beside these modules and calls `environment`.
"""
