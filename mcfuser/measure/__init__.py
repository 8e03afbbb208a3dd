"""Right, and how fast: test cases, processes that may die, timing in turns."""
