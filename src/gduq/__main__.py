"""``python -m gduq`` is the command line."""

from gduq.cli import main

main()
