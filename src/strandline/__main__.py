"""`python -m strandline`: the command line, where its program is not at hand."""

from strandline.cli import main

if __name__ == "__main__":
    main()
