"""guiloop's Python side: everything the workflow's rules call.

The domain (`failures`, `identity`, `records`, `actions`, `tasks`) knows nothing of planners, worlds, browsers or
Snakemake; those know the domain; the rules in `rules/` know all of it. Importing anything a per-step rule needs pulls
in neither torch nor diffusers nor the openai client.
"""
