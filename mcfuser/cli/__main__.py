"""`python -m mcfuser.cli`: the command, without its script."""

from mcfuser.cli.command import main

if __name__ == "__main__":
    main()
