"""The report: pages that open from disk and show every step of every rollout beside its scores.

`data` reads what the workflow recorded, `plots` turns numbers into the geometry of pictures, `render` writes pages. All
text of models, planners, judges and tasks passes Jinja2's escaping; the pages' policy lets nothing run but the report's
own script. Left out: a server, copies of pictures (pages point to results/rollouts) and anything that needs a network.
"""
