"""``python -m mapsto``: the command line, for launchers such as torchrun."""

from mapsto.cli import main

if __name__ == "__main__":
    main()
