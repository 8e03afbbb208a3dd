"""Facts about a schedule as Triton and Gluon run it on an NVIDIA GPU."""
