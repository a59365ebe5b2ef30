"""`python -m basinax` is the command line."""

from basinax.cli import main

main()
