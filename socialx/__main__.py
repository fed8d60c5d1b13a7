"""``python -m socialx``: the same commands as the ``socialx`` entry point."""

from socialx.cli import main

main()
