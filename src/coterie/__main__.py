"""`python -m coterie`: the command line, where the folder of scripts is not on the path."""

from coterie.cli.main import main

if __name__ == "__main__":
    main()
