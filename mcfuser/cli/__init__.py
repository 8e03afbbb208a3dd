"""The command `mcfuser`: one module for each of its commands, or for a few that belong together.

A command's module is loaded whenever `mcfuser` starts, and imports the rooms that do the work only
where it runs: `mcfuser --help` loads no compiler.
"""
