"""`python -m extproc` is the `extproc` command."""

from extproc.cli import main

if __name__ == "__main__":
    main()
