"""What a process needs to run a compiled module; imports nothing else of mcfuser."""
