"""The search space: tiling expressions, tile sizes, pruning, and the schedules they place."""
