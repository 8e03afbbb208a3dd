"""Examines an installation: what is missing or wrong, and how to mend it.

Each module looks at one thing and gives findings (mcfuser.diagnosis). What may crash a process is
tried in another one.
"""
