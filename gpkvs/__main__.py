"""``python -m gpkvs``: the gpkvs command."""

from gpkvs.cli.main import main

main()
