"""Planners decide the next action. `base` has the protocol, `registry` makes one from its row of the configuration."""
