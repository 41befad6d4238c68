"""``python -m mapsto``: the command line."""

from mapsto.cli import main

if __name__ == "__main__":
    main()
